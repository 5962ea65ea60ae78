// SPDX-License-Identifier: Apache-2.0
//! Results that a program recorded which shares no code with the library, in the format of
//! doc/vectors.md: the crate gives their bits. RMSNORM_RECORDED names the file if it is elsewhere.

use rmsnorm::{norm, Bf16, EpsPlacement, Options, Rounding, ViewMut, F16};

/// A tensor of f32, or of the bits of f16 or bf16.
#[derive(Clone)]
struct Tensor<'a> {
    dtype: &'a str,
    d: usize,
    f32s: Vec<f32>,
    bits: Vec<u16>,
}

impl<'a> Tensor<'a> {
    /// Reads `"NAME":{"dtype":"F32","shape":[2,64],"data_offsets":[0,512]}` of a .safetensors file.
    fn read(name: &str, header: &'a str, data: &[u8]) -> Option<Self> {
        let entry = header.split_once(&format!("\"{}\":{{\"dtype\":\"", name))?.1;
        let (dtype, numbers) = entry.split_once('}')?.0.split_once('"')?;
        let numbers = numbers.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<usize> = numbers.filter_map(|number| number.parse().ok()).collect();
        let (shape, place) = numbers.split_at(numbers.len() - 2);
        let mut tensor = Tensor { dtype, d: *shape.last()?, f32s: vec![], bits: vec![] };
        let data = &data[place[0]..place[1]];
        if dtype == "F32" {
            let elements = data.chunks_exact(4).map(|x| x.try_into().unwrap());
            tensor.f32s = elements.map(f32::from_le_bytes).collect();
        } else {
            let elements = data.chunks_exact(2).map(|x| x.try_into().unwrap());
            tensor.bits = elements.map(u16::from_le_bytes).collect();
        }
        Some(tensor)
    }
    fn view(&mut self) -> ViewMut<'_> {
        let view = match self.dtype {
            "F32" => ViewMut::from(&mut self.f32s),
            "F16" => ViewMut::from(F16::slice_mut(&mut self.bits)),
            _ => ViewMut::from(Bf16::slice_mut(&mut self.bits)),
        };
        view.rows(self.d).unwrap()
    }
}

#[test]
fn recorded_bits() {
    let of_tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../test/data/contract.safetensors");
    let path = std::env::var_os("RMSNORM_RECORDED").unwrap_or_else(|| of_tree.into());
    let file = std::fs::read(path).unwrap();
    let (length, file) = file.split_at(8);
    let (header, data) = file.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header = std::str::from_utf8(header).unwrap();
    // {"__metadata__":{"CASE":"WORDS","CASE":"WORDS"},"TENSOR":{...},...}
    let cases: Vec<_> = header.split_once('}').unwrap().0.split('"').skip(3).collect();
    assert!(cases.len() > 4 * 100);
    for case in cases.chunks(4) {
        let (mut options, mut tensors) = (Options::default(), [None, None, None]);
        for (key, value) in case[2].split(' ').filter_map(|word| word.split_once('=')) {
            match key {
                "x" => tensors[0] = Tensor::read(value, header, data),
                "weight" => tensors[1] = Tensor::read(value, header, data),
                "y" => tensors[2] = Tensor::read(value, header, data),
                "eps" => options.eps = value.parse().unwrap(),
                "divisor" => options.divisor = value.parse().unwrap(),
                "weight_offset" => options.weight_offset = value.parse().unwrap(),
                "rounding" => options.rounding = Rounding::BeforeWeight,
                "eps_placement" => options.eps_placement = EpsPlacement::Outside,
                _ => assert_eq!((key, value), ("op", "forward")),
            }
        }
        let [mut x, mut weight, wanted] = tensors.map(Option::unwrap);
        let mut y = wanted.clone();
        y.f32s.fill(f32::NAN);
        y.bits.fill(u16::MAX);
        norm(x.view().into(), Some(weight.view().into()), y.view(), &options).unwrap();
        let bits = |tensor: &Tensor| tensor.f32s.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&y) == bits(&wanted) && y.bits == wanted.bits, "{}", case[0]);
    }
}
