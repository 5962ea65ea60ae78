// SPDX-License-Identifier: Apache-2.0
//! Computes the golden vectors by the crate and compares their bits. The arguments are a list of cases
//! and the data of their tensors, which rust_test.py writes.
//!
//! A line of the list is a case: its name, and words `key=value` separated by spaces. A tensor is a
//! type, a shape and the place of its bytes in the data, such as `x=BF16:2,64:1024`.

use rmsnorm::*;
use std::collections::BTreeMap;

#[derive(Clone)]
enum Tensor {
    F32(Vec<f32>),
    F16(Vec<F16>),
    Bf16(Vec<Bf16>),
    F64(Vec<f64>),
    I8(Vec<i8>),
}

/// Applies an expression to the elements of a tensor, whatever their type.
macro_rules! with {
    ($tensor:expr, $elements:ident => $result:expr) => {
        match $tensor {
            Tensor::F32($elements) => $result,
            Tensor::F16($elements) => $result,
            Tensor::Bf16($elements) => $result,
            Tensor::F64($elements) => $result,
            Tensor::I8($elements) => $result,
        }
    };
}

impl Tensor {
    /// Reads the tensor that a word of a case names, and its shape.
    fn read(word: &str, data: &[u8]) -> (Self, Vec<usize>) {
        let parts: Vec<_> = word.split(':').collect();
        let shape: Vec<usize> =
            parts[1].split(',').filter(|size| !size.is_empty()).map(number).collect();
        let count = shape.iter().product();
        let data = &data[number::<usize>(parts[2])..];
        macro_rules! numbers {
            ($type:ty, $size:expr) => {
                data.chunks_exact($size)
                    .take(count)
                    .map(|bytes| <$type>::from_le_bytes(bytes.try_into().unwrap()))
            };
        }
        let tensor = match parts[0] {
            "F32" => Tensor::F32(numbers!(f32, 4).collect()),
            "F16" => Tensor::F16(numbers!(u16, 2).map(F16).collect()),
            "BF16" => Tensor::Bf16(numbers!(u16, 2).map(Bf16).collect()),
            "F64" => Tensor::F64(numbers!(f64, 8).collect()),
            "I8" => Tensor::I8(numbers!(i8, 1).collect()),
            other => panic!("type {}", other),
        };
        // A single value has no dimension there.
        (tensor, if shape.is_empty() { vec![1] } else { shape })
    }
    /// The bits of each number, the same for every NaN.
    fn bits(&self) -> Vec<u64> {
        fn one_nan(bits: u64, is_nan: bool) -> u64 {
            if is_nan {
                u64::MAX
            } else {
                bits
            }
        }
        match self {
            Tensor::F32(all) => {
                all.iter().map(|x| one_nan(x.to_bits().into(), x.is_nan())).collect()
            }
            Tensor::F16(all) => {
                all.iter().map(|x| one_nan(x.0.into(), x.0 & 0x7fff > 0x7c00)).collect()
            }
            Tensor::Bf16(all) => {
                all.iter().map(|x| one_nan(x.0.into(), x.0 & 0x7fff > 0x7f80)).collect()
            }
            Tensor::F64(all) => all.iter().map(|x| one_nan(x.to_bits(), x.is_nan())).collect(),
            Tensor::I8(all) => all.iter().map(|&x| x as u64).collect(),
        }
    }
    /// The same type and size, with other values.
    fn spoiled(&self) -> Self {
        match self {
            Tensor::F32(elements) => Tensor::F32(vec![123.0; elements.len()]),
            Tensor::F16(elements) => Tensor::F16(vec![F16(123); elements.len()]),
            Tensor::Bf16(elements) => Tensor::Bf16(vec![Bf16(123); elements.len()]),
            Tensor::F64(elements) => Tensor::F64(vec![123.0; elements.len()]),
            Tensor::I8(elements) => Tensor::I8(vec![123; elements.len()]),
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    text.parse().unwrap()
}

fn set_option(options: &mut Options, name: &str, value: &str) {
    match (name, value) {
        ("eps", _) => options.eps = number(value),
        ("divisor", _) => options.divisor = number(value),
        ("weight_offset", _) => options.weight_offset = number(value),
        ("factor", _) => options.factor = number(value),
        ("eps_placement", "outside") => options.eps_placement = EpsPlacement::Outside,
        ("eps_placement", "floor") => options.eps_placement = EpsPlacement::Floor,
        ("rounding", "before_weight") => options.rounding = Rounding::BeforeWeight,
        ("rounding", "inverse") => options.rounding = Rounding::Inverse,
        ("residual_rounding", "unrounded") => {
            options.residual_rounding = ResidualRounding::Unrounded
        }
        ("activation", "sigmoid") => options.activation = Activation::Sigmoid,
        ("gate_placement", "before") => options.gate_placement = GatePlacement::Before,
        ("gate_rounding", "rounded") => options.gate_rounding = GateRounding::Rounded,
        _ => panic!("option {}={}", name, value),
    }
}

const RESULTS: [&str; 10] =
    ["residual_out", "y", "q", "rstd", "sums_out", "scale", "zero", "dx", "dw", "db"];

/// A case: its tensors with their shapes, by the names of operands, and its options.
struct Case<'a> {
    backward: bool,
    options: Options,
    inputs: BTreeMap<&'a str, (Tensor, Vec<usize>)>,
    wanted: BTreeMap<&'a str, (Tensor, Vec<usize>)>,
    added_to: BTreeMap<&'a str, Tensor>,
}

impl<'a> Case<'a> {
    fn read(words: &[(&'a str, &'a str)], data: &[u8]) -> Self {
        let mut case = Case {
            backward: words.contains(&("op", "backward")),
            options: Options::default(),
            inputs: BTreeMap::new(),
            wanted: BTreeMap::new(),
            added_to: BTreeMap::new(),
        };
        for &(word, value) in words {
            if !value.contains(':') {
                if word != "op" && !word.ends_with("_values") {
                    set_option(&mut case.options, word, value);
                }
            } else if let Some(gradient) = word.strip_suffix("_in") {
                case.added_to.insert(gradient, Tensor::read(value, data).0);
            } else if RESULTS.contains(&word) && !(case.backward && word == "rstd") {
                case.wanted.insert(word, Tensor::read(value, data));
            } else {
                case.inputs.insert(word, Tensor::read(value, data));
            }
        }
        case
    }

    /// Makes the call, and returns its results.
    fn run(&self, prepared: bool) -> Result<BTreeMap<&'a str, Tensor>> {
        let mut results: BTreeMap<&str, Tensor> = BTreeMap::new();
        for (&word, (tensor, _)) in &self.wanted {
            let old = self.added_to.get(word).cloned().unwrap_or_else(|| tensor.spoiled());
            results.insert(word, old);
        }
        let (mut forward_operands, mut backward_operands) = Default::default();
        for (&word, (tensor, shape)) in &self.inputs {
            let view = with!(tensor, elements => View::from(elements).reshape(shape)?);
            let operand = input(word, self.backward, &mut forward_operands, &mut backward_operands);
            *operand = Some(view);
        }
        for (word, tensor) in results.iter_mut() {
            let shape = &self.wanted[word].1;
            let view = with!(tensor, elements => ViewMut::from(elements).reshape(shape)?);
            *output(word, &mut forward_operands, &mut backward_operands) = Some(view);
        }
        backward_operands.add_to_dx = self.added_to.contains_key("dx");
        backward_operands.add_to_dw = self.added_to.contains_key("dw");
        backward_operands.add_to_db = self.added_to.contains_key("db");
        match (self.backward, prepared) {
            (false, false) => forward(&forward_operands, &self.options, &Context::default())?,
            (true, false) => backward(&backward_operands, &self.options, &Context::default())?,
            (false, true) => {
                Prepared::new(&[Call::new(forward_operands, &self.options)], None)?.run()
            }
            (true, true) => {
                Prepared::backward(&Call::new(backward_operands, &self.options), None)?.run()
            }
        }
        Ok(results)
    }
}

fn input<'o, 'a>(
    word: &str,
    is_backward: bool,
    forward: &'o mut ForwardOperands<'a>,
    backward: &'o mut BackwardOperands<'a>,
) -> &'o mut Option<View<'a>> {
    match (is_backward, word) {
        (false, "x") => &mut forward.x,
        (false, "residual") => &mut forward.residual,
        (false, "gate") => &mut forward.gate,
        (false, "weight") => &mut forward.weight,
        (false, "bias") => &mut forward.bias,
        (false, "post_norm_weight") => &mut forward.post_norm_weight,
        (false, "sums") => &mut forward.sums,
        (true, "x") => &mut backward.x,
        (true, "dy") => &mut backward.dy,
        (true, "weight") => &mut backward.weight,
        (true, "rstd") => &mut backward.rstd,
        _ => panic!("input {}", word),
    }
}

fn output<'o, 'a>(
    word: &str,
    forward: &'o mut ForwardOperands<'a>,
    backward: &'o mut BackwardOperands<'a>,
) -> &'o mut Option<ViewMut<'a>> {
    match word {
        "residual_out" => &mut forward.residual_out,
        "y" => &mut forward.y,
        "q" => &mut forward.q,
        "rstd" => &mut forward.rstd,
        "sums_out" => &mut forward.sums_out,
        "scale" => &mut forward.scale,
        "zero" => &mut forward.zero,
        "dx" => &mut backward.dx,
        "dw" => &mut backward.dw,
        "db" => &mut backward.db,
        _ => panic!("output {}", word),
    }
}

fn main() {
    let paths: Vec<_> = std::env::args().skip(1).collect();
    let list = std::fs::read_to_string(&paths[0]).unwrap();
    let data = std::fs::read(&paths[1]).unwrap();
    let (mut results, mut wrong) = (0, 0);
    for line in list.lines() {
        let (name, words) = line.split_once(' ').unwrap();
        let words: Vec<_> = words.split(' ').map(|word| word.split_once('=').unwrap()).collect();
        let case = Case::read(&words, &data);
        for prepared in [false, true] {
            let given = case.run(prepared).unwrap_or_else(|error| panic!("{}: {}", name, error));
            for (word, (wanted, _)) in &case.wanted {
                results += 1;
                if given[word].bits() != wanted.bits() {
                    wrong += 1;
                    println!("{}: {} differs, prepared: {}", name, word, prepared);
                }
            }
        }
    }
    println!("{} cases, {} results, {} wrong", list.lines().count(), results, wrong);
    std::process::exit(i32::from(wrong != 0));
}
