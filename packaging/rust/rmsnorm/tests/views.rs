// SPDX-License-Identifier: Apache-2.0
//! No view leaves its slice.

use rmsnorm::{norm, Bf16, Options, Status, View, ViewMut, F16};

fn status<T: std::fmt::Debug>(result: rmsnorm::Result<T>) -> Status {
    result.unwrap_err().status
}

#[test]
fn a_shape_is_given_once_and_fills_the_slice() {
    let x = [0.0f32; 24];
    let whole = View::from(&x);
    let same = [whole.reshape(&[2, 3, 4]), whole.strided(0, &[2, 3, 4], &[12, 4, 1])];
    assert_eq!(format!("{:?}", same[0]), format!("{:?}", same[1]));
    assert!(whole.reshape(&[24, 1, 1, 1, 1, 1, 1, 1]).is_ok());
    let rows = whole.strided(0, &[8, 3], &[1, 1]).unwrap();
    let repeated = whole.strided(0, &[48], &[0]).unwrap();
    let given_twice = [rows.rows(3), rows.strided(0, &[2], &[1]), repeated.rows(3)];
    let no_rows = [0, 5, 7, usize::MAX].map(|d| whole.rows(d));
    let no_shapes = [&[2, 3][..], &[2, 3, 5], &[], &[usize::MAX, 2], &[(1 << 61) + 3, 8]];
    let no_shapes = no_shapes.map(|shape| whole.reshape(shape));
    let too_long = whole.reshape(&[24, 1, 1, 1, 1, 1, 1, 1, 1]);
    let of_two_lengths = whole.strided(0, &[2, 2], &[1]);
    let others = [too_long, of_two_lengths, whole.strided(0, &[], &[])];
    let nine = [whole.strided(0, &[1; 9], &[0; 9])];
    let refused = given_twice.into_iter().chain(no_rows).chain(no_shapes).chain(others).chain(nine);
    for (index, view) in refused.enumerate() {
        assert_eq!(status(view), Status::SHAPE, "{}", index);
    }
    let error = whole.rows(5).unwrap_err();
    assert_eq!(error.to_string(), "view: 24 elements are no rows of 5");
}

#[test]
fn an_empty_slice_has_rows_of_any_size() {
    let (x, mut y): ([f32; 0], [f32; 0]) = ([], []);
    assert!(View::from(&x).reshape(&[0, usize::MAX, usize::MAX]).is_ok());
    let (x, y) = (View::from(&x).rows(7).unwrap(), ViewMut::from(&mut y).rows(7).unwrap());
    norm(x, None, y, &Options::default()).unwrap();
}

/// Whether a view of 10 elements may have this layout: it visits every element.
fn fits(start: usize, shape: &[usize], strides: &[isize]) -> bool {
    let mut places = vec![start as i128];
    for (&size, &stride) in shape.iter().zip(strides) {
        places = (0..size as i128)
            .flat_map(|i| places.iter().map(move |place| place + i * stride as i128))
            .collect();
    }
    places.iter().all(|place| (0..10).contains(place))
}

#[test]
fn strides_must_stay_in_the_slice() {
    let mut x = [F16(0); 10];
    let mut inside = 0;
    for start in 0..12 {
        for shape in (0..16).map(|i| [i / 4, i % 4]) {
            for strides in (0..60).map(|i| [i / 5 - 6, i % 5 - 2]) {
                let wanted = fits(start, &shape, &strides);
                let view = View::from(&x).strided(start, &shape, &strides);
                assert_eq!(view.is_ok(), wanted, "{} {:?} {:?}", start, shape, strides);
                let view = ViewMut::from(&mut x).strided(start, &shape, &strides);
                assert_eq!(view.is_ok(), wanted, "{} {:?} {:?}", start, shape, strides);
                inside += usize::from(wanted);
            }
        }
    }
    assert!(inside > 1000);
}

#[test]
fn huge_sizes_and_strides_do_not_wrap_around() {
    let x = [0.0f32; 4];
    let whole = View::from(&x);
    for (start, shape, strides) in [
        (0, [usize::MAX, 1], [1, 1]),
        (0, [1 << 63, 2], [2, 1]),
        (0, [3, 2], [isize::MAX, 1]),
        (1, [3, 2], [isize::MIN, 1]),
        (0, [usize::MAX, usize::MAX], [isize::MIN, isize::MAX]),
        (usize::MAX, [1, 1], [1, 1]),
        (usize::MAX, [2, 1], [1, 1]),
    ] {
        let status = status(whole.strided(start, &shape, &strides));
        assert_eq!(status, Status::LAYOUT, "{} {:?} {:?}", start, shape, strides);
    }
    let all = [usize::MAX; 8];
    assert_eq!(status(whole.strided(0, &all, &[isize::MAX; 8])), Status::LAYOUT);
    assert_eq!(status(whole.strided(0, &all, &[isize::MIN; 8])), Status::LAYOUT);
    let error = whole.strided(1, &[2, 2], &[2, 1]).unwrap_err();
    let text =
        "view: shape [2, 2] with strides [2, 1] from element 1 reaches from element 1 to 4 of 4";
    assert_eq!(error.to_string(), text);
}

#[test]
fn start_and_strides_count_elements_of_every_type() {
    let f32s = vec![3.0f32, 3.0, 2.0, -2.0];
    let f16s = F16::slice(&[0x4200, 0x4200, 0x4000, 0xc000]);
    let bf16s = [0x4040, 0x4040, 0x4000, 0xc000].map(Bf16);
    let options = Options { eps: 0.0, ..Options::default() };
    for x in [View::from(&f32s), View::from(f16s), View::from(&bf16s)] {
        let mut y = [0.0f32; 4];
        let reversed = x.strided(2, &[2, 2], &[-2, 1]).unwrap();
        norm(reversed, None, ViewMut::from(&mut y).rows(2).unwrap(), &options).unwrap();
        assert_eq!(y, [1.0, -1.0, 1.0, 1.0]);
    }
}

#[test]
fn the_types_of_16_bits_are_their_bits() {
    let mut bits = [1u16, 2];
    assert_eq!(F16::slice(&bits), [F16(1), F16(2)]);
    F16::slice_mut(&mut bits)[1] = F16(7);
    assert_eq!(bits, [1, 7]);
}
