// SPDX-License-Identifier: Apache-2.0
//! Each operand, option and function does what its name says. The rows have an RMS that is a power of
//! two, so the expected numbers are exact.

use rmsnorm::{
    add_norm, backward, forward, forward_all, norm, Activation, BackwardOperands, Bf16, Call,
    Context, Dtype, EpsPlacement, Executor, ForwardOperands, GatePlacement, GateRounding, Options,
    Prepared, ResidualRounding, Result, RmsNorm, RotaryPairs, RotaryPart, RotaryRounding, Rounding,
    Status, Target, View, ViewMut, F16,
};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

fn no_eps() -> Options {
    Options { eps: 0.0, ..Options::default() }
}

/// Operands from slices or views.
macro_rules! operands {
    ($kind:ident, $($operand:ident: $view:expr),*) => {
        $kind { $($operand: Some($view.into()),)* ..$kind::default() }
    };
}

#[test]
fn inputs_take_part() {
    let x = &[2.0f32, -2.0];
    let scaled = -(2.0f32.sqrt());
    let sums = View::from(&[0.0f64, 8.0]).strided(1, &[1], &[1]).unwrap();
    for (operands, y) in [
        (operands!(ForwardOperands, x: &[F16(0x3c00), F16(0xbc00)], sums: sums), [0.5, -0.5]),
        (operands!(ForwardOperands, x: x, weight: &[3.0f32, 5.0]), [3.0, -5.0]),
        (operands!(ForwardOperands, x: x, bias: &[3.0f32, 5.0]), [4.0, 4.0]),
        (operands!(ForwardOperands, x: x, residual: &[2.0f32, 2.0]), [scaled.abs(), 0.0]),
        (operands!(ForwardOperands, x: x, post_norm_weight: &[0.0f32, 8.0]), [0.0, scaled]),
        (operands!(ForwardOperands, x: x, gate: &[0.0f32, 0.0]), [0.0, -0.0]),
        (operands!(ForwardOperands, x: x, cos: &[0.0f32], sin: &[1.0f32]), [1.0, 1.0]),
    ] {
        let mut results = [0.0; 2];
        let operands = ForwardOperands { y: Some(ViewMut::from(&mut results)), ..operands };
        forward(&operands, &no_eps(), &Context::default()).unwrap();
        assert_eq!(results, y);
    }
}

/// A layer names its options in the words of the library.
macro_rules! assert_options {
    ($($option:ident: $value:expr => $word:literal,)*) => {$(
        let options = Options { $option: $value, ..no_eps() };
        let layer = RmsNorm::new(64, Dtype::F16, &options, &Context::default()).unwrap();
        let wanted = format!("RmsNorm(64, eps=0, f16, {}={})", stringify!($option), $word);
        assert_eq!(layer.to_string(), wanted);
    )*};
}

#[test]
fn options_reach_the_library() {
    assert_options! {
        eps_placement: EpsPlacement::Outside => "outside",
        eps_placement: EpsPlacement::Floor => "floor",
        rounding: Rounding::BeforeWeight => "before_weight",
        rounding: Rounding::Inverse => "inverse",
        residual_rounding: ResidualRounding::Unrounded => "unrounded",
        weight_offset: 1.5 => "1.5",
        divisor: 8.0 => "8",
        factor: 3.0 => "3",
        activation: Activation::Sigmoid => "sigmoid",
        activation: Activation::None => "none",
        gate_placement: GatePlacement::Before => "before",
        gate_rounding: GateRounding::Rounded => "rounded",
        group: 8 => "8",
        residual_factor: 1.5 => "1.5",
        rotary_pairs: RotaryPairs::Neighbours => "neighbours",
        rotary_part: RotaryPart::End => "end",
        rotary_rounding: RotaryRounding::Norm => "norm",
        rotary_rounding: RotaryRounding::None => "none",
    }
}

#[test]
fn outputs_are_written() {
    let (mut residual_out, mut y, mut q) = ([0.0f32; 2], [0.0f32; 2], [0i8; 2]);
    let (mut rstd, mut sums, mut scale, mut zero) = ([0.0f32], [0.0f64], [0.0f32], [9i8]);
    let operands = operands!(ForwardOperands, x: &[3.0f32, 1.0], residual: &[1.0f32, 3.0],
        residual_out: &mut residual_out, y: &mut y, q: &mut q, rstd: &mut rstd,
        sums_out: &mut sums, scale: &mut scale, zero: &mut zero);
    forward(&operands, &no_eps(), &Context::default()).unwrap();
    assert_eq!((residual_out, y, rstd, sums), ([4.0, 4.0], [1.0, 1.0], [0.25], [32.0]));
    assert_eq!((scale, zero, q), ([1.0 / 255.0], [-128], [127, 127]));
}

#[test]
fn gradients_are_written_and_added() {
    let (x, dy, weight, rstd) = ([1.0f32, -1.0], [1.0f32, 0.0], [1.0f32, 5.0], [2.0f32]);
    for bits in 0..8 {
        let (add_to_dx, add_to_dw, add_to_db) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        let (mut dx, mut dw, mut db) = ([10.0f32; 2], [10.0f32; 2], [10.0f32; 2]);
        let operands = BackwardOperands {
            add_to_dx,
            add_to_dw,
            add_to_db,
            ..operands!(BackwardOperands, x: &x, dy: &dy, weight: &weight, rstd: &rstd,
                dx: &mut dx, dw: &mut dw, db: &mut db)
        };
        backward(&operands, &no_eps(), &Context::default()).unwrap();
        let old = |add| if add { 10.0 } else { 0.0 };
        // The norm is 2 x, and c is 1: dx = 2 dy - 4 x.
        assert_eq!(dx, [old(add_to_dx) - 2.0, old(add_to_dx) + 4.0]);
        assert_eq!(dw, [old(add_to_dw) + 2.0, old(add_to_dw)]);
        assert_eq!(db, [old(add_to_db) + 1.0, old(add_to_db)]);
    }
}

#[test]
fn short_forms_are_forward() {
    let (x, weight) = ([2.0f32, -2.0], [1.0f32, 3.0]);
    let (mut stream, mut y) = ([6.0f32, -6.0], [0.0f32; 2]);
    let weight = Some(View::from(&weight));
    norm(View::from(&x), weight, ViewMut::from(&mut y), &no_eps()).unwrap();
    assert_eq!(y, [1.0, -3.0]);
    let in_place = ViewMut::from(&mut stream);
    let y_view = ViewMut::from(&mut y);
    add_norm(View::from(&x), in_place.into(), weight, in_place, y_view, &no_eps()).unwrap();
    assert_eq!((stream, y), ([8.0, -8.0], [1.0, -3.0]));
}

/// A call fails with this status, and its text is this one, or begins with it where that ends in ….
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, status: Status, text: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.status, status, "{}", error);
    match text.strip_suffix('…') {
        Some(begin) => assert!(error.to_string().starts_with(begin), "{}", error),
        None => assert_eq!(error.to_string(), text),
    }
}

#[test]
fn a_refusal_has_the_library_s_words() {
    let (x, mut y) = ([1.0f32; 6], [0.0f32; 6]);
    let (x, y) = (View::from(&x), ViewMut::from(&mut y));
    let result = norm(x.rows(3).unwrap(), None, y, &no_eps());
    assert_refused(result, Status::SHAPE, "y: 1 dimensions, but x has 2");
    let result = norm(x, None, y, &Options { eps: -1.0, ..no_eps() });
    let words = "options: eps is -1; it must be finite and not negative";
    assert_refused(result, Status::OPTION, words);
    let result = forward(&ForwardOperands::default(), &no_eps(), &Context::default());
    assert_refused(result, Status::NULL, "x: the view is null");
    assert_eq!(Status::MEMORY.to_string(), "out of memory");
    assert_eq!(Status::OVERLAP.code(), 6);
}

#[test]
fn outputs_must_be_apart() {
    let mut buffer = [1.0f32; 6];
    let all = ViewMut::from(&mut buffer);
    let rows = |start, stride| all.strided(start, &[2, 2], &[stride, 1]).unwrap();
    let result = norm(rows(0, 2).into(), None, rows(1, 2), &no_eps());
    assert_refused(result, Status::OVERLAP, "y: overlaps x…");
    let result = norm(rows(2, 2).into(), None, rows(0, 0), &no_eps());
    assert_refused(result, Status::LAYOUT, "y: its strides do not tell rows apart…");
    let call = Call::new(operands!(ForwardOperands, x: all, y: all), &no_eps());
    let words = "calls[0].y: overlaps calls[1]…";
    assert_refused(forward_all(&[call, call], &Context::default()), Status::OVERLAP, words);
    assert_refused(Prepared::new(&[call, call], None), Status::OVERLAP, words);
    assert_eq!(buffer, [1.0; 6]);
}

fn layer() -> RmsNorm {
    RmsNorm::new(2, Dtype::Bf16, &no_eps(), &Context::default()).unwrap()
}

#[test]
fn a_layer_holds_its_vectors() {
    fn shared_by_threads(_: &(impl Send + Sync)) {}
    let mut layer = layer();
    assert_eq!((layer.d(), layer.dtype(), *layer.options()), (2, Dtype::Bf16, no_eps()));
    assert_eq!(layer.to_string(), "RmsNorm(2, eps=0, bf16)");
    shared_by_threads(&layer);
    let x = [2.0f32, -2.0];
    let y_of = |layer: &RmsNorm| {
        let mut y = [0.0f32; 2];
        layer.norm_rows(&x, &mut y).unwrap();
        y
    };
    layer.set_weight(View::from(&[1.00001f32, 3.0])).unwrap();
    let mut weight = [0.0f32; 2];
    layer.get_weight(ViewMut::from(&mut weight)).unwrap();
    assert_eq!((weight, y_of(&layer)), ([1.0, 3.0], [1.0, -3.0]));
    layer.set_bias(Some(View::from(&[1.0f32, 1.0]))).unwrap();
    assert_eq!(y_of(&layer), [2.0, -2.0]);
    layer.set_bias(None).unwrap();
    layer.reset_weight().unwrap();
    assert_eq!(y_of(&layer), [1.0, -1.0]);
    for (post_norm_weight, sum) in [(Some([7.0f32; 2]), 10.0), (None, 5.0)] {
        layer.set_post_norm_weight(post_norm_weight.as_ref().map(View::from)).unwrap();
        let (mut stream, mut y) = ([3.0f32, -3.0], [0.0f32; 2]);
        layer.add_norm_rows(&x, &mut stream, &mut y).unwrap();
        assert_eq!((stream, y), ([sum, -sum], [1.0, -1.0]));
    }
    assert_refused(layer.set_weight(View::from(&[1.0f32; 3])), Status::SHAPE, "weight: 3…");
    let empty = RmsNorm::new(0, Dtype::F32, &no_eps(), &Context::default());
    assert_refused(empty, Status::SHAPE, "d: 0…");
}

#[test]
fn a_layer_works_in_place() {
    let layer = layer();
    let mut x = [2.0f32, -2.0, 8.0, 8.0];
    layer.norm_rows_in_place(&mut x).unwrap();
    assert_eq!(x, [1.0, -1.0, 1.0, 1.0]);
    let mut stream = [Bf16(0x3f80), Bf16(0xbf80), Bf16(0x3f80), Bf16(0x3f80)];
    layer.add_norm_rows_in_place(&mut x, &mut stream).unwrap();
    assert_eq!(x, [1.0, -1.0, 1.0, 1.0]);
    assert_eq!(stream, [Bf16(0x4000), Bf16(0xc000), Bf16(0x4000), Bf16(0x4000)]);
}

#[test]
fn a_layer_refuses_slices_of_other_lengths() {
    let layer = layer();
    let (two, three, four) = (&[0.0f32; 2], &[0.0f32; 3], &[0.0f32; 4]);
    let (out2, out3, out4) = (&mut [0.0f32; 2], &mut [0.0f32; 3], &mut [0.0f32; 4]);
    let other4 = &mut [0.0f32; 4];
    let gradients = |x, rstd, dx, dw| layer.backward_rows(four, x, rstd, dx, dw);
    for (result, text) in [
        (layer.norm_rows(three, out3), "x: 3 elements are no rows of 2"),
        (layer.norm_rows_in_place(out3), "x: 3 elements are no rows of 2"),
        (layer.norm_rows(four, out2), "y: 2 elements; there must be 4"),
        (layer.norm_rows(two, out4), "y: 4 elements; there must be 2"),
        (layer.add_norm_rows(four, out2, out4), "residual: 2 elements; there must be 4"),
        (layer.add_norm_rows_in_place(out4, out2), "residual: 2 elements; there must be 4"),
        (layer.add_norm_rows(four, out4, out2), "y: 2 elements; there must be 4"),
        (gradients(two, None, Some(out4), None), "x: 2 elements; there must be 4"),
        (gradients(four, Some(four), Some(other4), None), "rstd: 4 elements; there must be 2"),
        (gradients(four, None, Some(out2), None), "dx: 2 elements; there must be 4"),
        (gradients(four, None, None, Some(out3)), "dw: 3 elements; there must be 2"),
    ] {
        assert_refused(result, Status::SHAPE, text);
    }
    layer.backward_rows(four, four, Some(two), Some(out4), Some(out2)).unwrap();
}

/// Two norms of two elements each, by the layer and by options.
fn halves_in_place<'a>(layer: &'a RmsNorm, both: ViewMut<'a>) -> [Call<'a>; 2] {
    let in_place = |start| {
        let row = both.strided(start, &[2], &[1]).unwrap();
        operands!(ForwardOperands, x: row, y: row)
    };
    [Call::by(layer, in_place(0)), Call::new(in_place(2), &no_eps())]
}

#[test]
fn several_norms_are_one_call() {
    let mut layer = layer();
    layer.set_weight(View::from(&[1.0f32, 3.0])).unwrap();
    let mut qk = [2.0f32, 2.0, 8.0, -8.0];
    let calls = halves_in_place(&layer, ViewMut::from(&mut qk));
    forward_all(&calls, &Context::default()).unwrap();
    assert_eq!(qk, [1.0, 3.0, 1.0, -1.0]);
    forward_all(&[], &Context::default()).unwrap();
}

#[test]
fn prepared_calls_read_new_values() {
    let layer = layer();
    let mut buffer = [0.0f32; 4];
    let cells = Cell::from_mut(&mut buffer[..]).as_slice_of_cells();
    let calls = halves_in_place(&layer, ViewMut::from(cells));
    let mut prepared = Prepared::new(&calls, Some(&Context::default())).unwrap();
    for value in [2.0, -4.0] {
        cells.iter().for_each(|cell| cell.set(value));
        prepared.run();
        assert!(cells.iter().all(|cell| cell.get() == value.signum()));
    }
}

#[test]
fn gradients_by_a_layer() {
    let layer = layer();
    let (x, dy) = ([1.0f32, -1.0], [1.0f32, 0.0]);
    let (mut dx, mut dw) = ([0.0f32; 2], [0.0f32; 2]);
    layer.backward_rows(&dy, &x, Some(&[2.0]), Some(&mut dx), Some(&mut dw)).unwrap();
    assert_eq!((dx, dw), ([-2.0, 4.0], [2.0, 0.0]));
    for way in 0..3 {
        let mut in_place = dy;
        let gradient = ViewMut::from(&mut in_place);
        let operands =
            operands!(BackwardOperands, x: &x, dy: gradient, rstd: &[2.0f32], dx: gradient);
        match way {
            0 => layer.backward(&operands, None).unwrap(),
            1 => Prepared::backward(&Call::by(&layer, operands), None).unwrap().run(),
            _ => Prepared::backward(&Call::new(operands, &no_eps()), None).unwrap().run(),
        }
        assert_eq!(in_place, dx);
    }
}

/// A context of four parts, and how many parts its executor ran.
fn counting_context() -> (Context, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    // SAFETY: each part is run once, and no memory of operands is used.
    let executor = unsafe {
        Executor::new(move |count, part| {
            counter.fetch_add(count, Ordering::Relaxed);
            std::thread::scope(|scope| {
                for index in 0..count {
                    scope.spawn(move || part(index));
                }
            });
        })
    };
    (Context { threads: 4, executor: Some(executor), ..Context::default() }, count)
}

#[test]
fn an_executor_runs_the_parts() {
    let d = 1 << 20;
    let mut rows = vec![2.0f32; 4 * d];
    let cells = Cell::from_mut(&mut rows[..]).as_slice_of_cells();
    let y = ViewMut::from(cells).rows(d).unwrap();
    let in_place = operands!(ForwardOperands, x: y, y: y);

    let (context, parts) = counting_context();
    let call = Call::new(in_place, &no_eps());
    let mut prepared = Prepared::new(&[call], Some(&context)).unwrap();
    drop(context);
    assert_eq!(Arc::strong_count(&parts), 2, "{:?} does not keep its executor", prepared);
    prepared.run();
    assert_eq!(parts.load(Ordering::Relaxed), 4);

    let (context, parts) = counting_context();
    let layer = RmsNorm::new(d, Dtype::F32, &no_eps(), &context).unwrap();
    drop(context);
    assert_eq!(Arc::strong_count(&parts), 2, "{:?} does not keep its executor", layer);
    layer.forward(&in_place, None).unwrap();
    let (context, parts_of_another) = counting_context();
    cells.iter().for_each(|cell| cell.set(2.0));
    layer.forward(&in_place, Some(&context)).unwrap();
    assert!(cells.iter().all(|cell| cell.get() == 1.0));
    assert_eq!([parts, parts_of_another].map(|parts| parts.load(Ordering::Relaxed)), [4, 4]);
}

#[test]
fn targets_have_names() {
    let names: Vec<_> = Target::names().collect();
    assert_eq!(names.last(), Some(&"reference"));
    assert!(names.contains(&Target::chosen().unwrap().name()));
    assert_eq!(Target::find("REFERENCE").unwrap().name(), "reference");
    for name in ["abacus", "nul\0"] {
        assert_refused(Target::find(name), Status::TARGET, "target: …");
    }
}

#[test]
fn the_library_describes_itself() {
    assert!(rmsnorm::version().starts_with("0.1."));
    assert!(rmsnorm::max_threads() >= 1);
    assert!(rmsnorm::has_openmp() || rmsnorm::max_threads() == 1);
    assert!(!rmsnorm::highway_version().is_empty());
}
