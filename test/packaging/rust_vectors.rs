// SPDX-License-Identifier: Apache-2.0
//! Computes the golden vectors by the crate and compares their bits. The arguments are a list of cases
//! and the data of their tensors, which rust_test.py writes.
//!
//! A line of the list is a case: its name, and words `key=value` separated by spaces. A tensor is a
//! type, a shape and the place of its bytes in the data, such as `x=BF16:2,64:1024`, and the
//! place of a result follows `result:`.

use rmsnorm::*;
use std::collections::BTreeMap;
use std::slice::{from_raw_parts, from_raw_parts_mut};

#[derive(Clone)]
struct Tensor<'a> {
    dtype: &'a str,
    shape: Vec<usize>,
    memory: Vec<u64>, // which is aligned for every type
}

impl<'a> Tensor<'a> {
    /// Reads the tensor that a word of a case names.
    fn read(word: &'a str, data: &[u8]) -> Self {
        let parts: Vec<_> = word.split(':').collect();
        let mut shape: Vec<usize> =
            parts[1].split(',').filter(|size| !size.is_empty()).map(number).collect();
        if shape.is_empty() {
            shape.push(1); // a single value has no dimension there
        }
        let mut tensor = Tensor { dtype: parts[0], shape, memory: vec![] };
        tensor.memory = vec![0; tensor.count()];
        let size = tensor.format().0;
        let data = &data[number::<usize>(parts[2])..][..tensor.count() * size];
        // SAFETY: the memory has eight bytes for each element.
        let bytes = unsafe { from_raw_parts_mut(tensor.memory.as_mut_ptr().cast(), data.len()) };
        for (to, from) in bytes.chunks_exact_mut(size).zip(data.chunks_exact(size)) {
            to.copy_from_slice(from);
            if cfg!(target_endian = "big") {
                to.reverse();
            }
        }
        tensor
    }
    fn count(&self) -> usize {
        self.shape.iter().product()
    }
    /// The size of an element, and the bits of infinity.
    fn format(&self) -> (usize, u64) {
        match self.dtype {
            "F32" => (4, 0x7f80_0000),
            "F16" => (2, 0x7c00),
            "BF16" => (2, 0x7f80),
            "F64" => (8, 0x7ff0_0000_0000_0000),
            "I8" => (1, u64::MAX),
            other => panic!("type {}", other),
        }
    }
    /// The elements, of which any bits are a number.
    fn elements<T: Element>(&self) -> &[T] {
        // SAFETY: the memory has eight bytes for each element.
        unsafe { from_raw_parts(self.memory.as_ptr().cast(), self.count()) }
    }
    fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { from_raw_parts_mut(self.memory.as_mut_ptr().cast(), self.count()) }
    }
    /// The bits of each number, the same for every NaN.
    fn bits(&self) -> Vec<u64> {
        let (size, infinity) = self.format();
        let bits: Vec<u64> = match size {
            1 => self.elements::<i8>().iter().map(|&x| x as u64).collect(),
            2 => self.elements::<F16>().iter().map(|x| x.0.into()).collect(),
            4 => self.elements::<f32>().iter().map(|x| x.to_bits().into()).collect(),
            _ => self.elements::<f64>().iter().map(|x| x.to_bits()).collect(),
        };
        let sign = 1 << (8 * size - 1);
        bits.into_iter()
            .map(|x| if size > 1 && x & !sign > infinity { u64::MAX } else { x })
            .collect()
    }
}

macro_rules! view {
    ($view:ident, $tensor:expr, $elements:ident) => {{
        let shape = $tensor.shape.clone();
        match $tensor.dtype {
            "F32" => $view::from($tensor.$elements::<f32>()),
            "F16" => $view::from($tensor.$elements::<F16>()),
            "BF16" => $view::from($tensor.$elements::<Bf16>()),
            "F64" => $view::from($tensor.$elements::<f64>()),
            _ => $view::from($tensor.$elements::<i8>()),
        }
        .reshape(&shape)?
    }};
}

/// Sets the operand that a word names.
macro_rules! set {
    ($operands:expr, $word:expr, $view:expr, $($operand:ident)*) => {
        match $word {
            $(stringify!($operand) => $operands.$operand = Some($view),)*
            other => panic!("operand {}", other),
        }
    };
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
        // The defaults.
        (_, "inside" | "after_weight" | "silu" | "after") => {}
        ("residual_rounding", "rounded") | ("gate_rounding", "unrounded") => {}
        _ => panic!("option {}={}", name, value),
    }
}

/// A case: its tensors by the names of operands, and its options.
struct Case<'a> {
    backward: bool,
    options: Options,
    inputs: BTreeMap<&'a str, Tensor<'a>>,
    wanted: BTreeMap<&'a str, Tensor<'a>>,
    added_to: BTreeMap<&'a str, Tensor<'a>>,
}

impl<'a> Case<'a> {
    fn read(words: &'a str, data: &[u8]) -> Self {
        let (inputs, wanted, added_to) = Default::default();
        let options = Options::default();
        let mut case = Case { backward: false, options, inputs, wanted, added_to };
        for word in words.split(' ') {
            let (key, value) = word.split_once('=').unwrap();
            if key == "op" {
                case.backward = value == "backward";
            } else if let Some(result) = value.strip_prefix("result:") {
                case.wanted.insert(key, Tensor::read(result, data));
            } else if !value.contains(':') {
                if !key.ends_with("_values") {
                    set_option(&mut case.options, key, value);
                }
            } else if let Some(gradient) = key.strip_suffix("_in") {
                case.added_to.insert(gradient, Tensor::read(value, data));
            } else {
                case.inputs.insert(key, Tensor::read(value, data));
            }
        }
        case
    }

    /// Makes the call, and returns its results.
    fn run(&self, prepared: bool) -> Result<BTreeMap<&'a str, Tensor<'a>>> {
        let mut results = self.wanted.clone();
        for (word, tensor) in results.iter_mut() {
            match self.added_to.get(word) {
                Some(before) => tensor.memory.clone_from(&before.memory),
                None => tensor.memory.fill(0x5a5a_5a5a_5a5a_5a5a),
            }
        }
        let (mut forward_operands, mut backward_operands) =
            (ForwardOperands::default(), BackwardOperands::default());
        for (&word, tensor) in &self.inputs {
            let view = view!(View, tensor, elements);
            if self.backward {
                set!(backward_operands, word, view, x dy weight rstd);
            } else {
                set!(forward_operands, word, view, x residual gate weight bias post_norm_weight sums);
            }
        }
        for (&word, tensor) in results.iter_mut() {
            let view = view!(ViewMut, tensor, elements_mut);
            if self.backward {
                set!(backward_operands, word, view, dx dw db);
            } else {
                set!(forward_operands, word, view, residual_out y q rstd sums_out scale zero);
            }
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

fn main() {
    let paths: Vec<_> = std::env::args().skip(1).collect();
    let list = std::fs::read_to_string(&paths[0]).unwrap();
    let data = std::fs::read(&paths[1]).unwrap();
    let (mut results, mut wrong) = (0, 0);
    for line in list.lines() {
        let (name, words) = line.split_once(' ').unwrap();
        let case = Case::read(words, &data);
        for prepared in [false, true] {
            let given = case.run(prepared).unwrap_or_else(|error| panic!("{}: {}", name, error));
            for (word, wanted) in &case.wanted {
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
