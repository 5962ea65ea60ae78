// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
#![deny(missing_docs, unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod calls;
mod context;
mod error;
mod module;
mod operands;
mod options;
mod view;

pub use calls::*;
pub use context::*;
pub use error::{Error, Result, Status};
pub use module::RmsNorm;
pub use operands::{BackwardOperands, ForwardOperands};
pub use options::*;
pub use view::*;

use rmsnorm_sys as sys;

/// The version of the library that is linked, such as "0.1.0".
pub fn version() -> &'static str {
    // SAFETY: a constant text.
    unsafe { error::constant_text(sys::rmsnorm_version()) }
}

/// How many threads a call uses where its context names no number and it has enough work.
pub fn max_threads() -> usize {
    // SAFETY: the function takes nothing.
    unsafe { sys::rmsnorm_max_threads() as usize }
}

/// Whether the library was built with OpenMP.
pub fn has_openmp() -> bool {
    // SAFETY: the function takes nothing.
    unsafe { sys::rmsnorm_has_openmp() != 0 }
}

/// The version of Highway that the library was built with.
pub fn highway_version() -> &'static str {
    // SAFETY: a constant text.
    unsafe { error::constant_text(sys::rmsnorm_highway_version()) }
}
