// SPDX-License-Identifier: Apache-2.0
use rmsnorm_sys as sys;
use std::ffi::CStr;
use std::fmt;

/// The kind of an error. A later version of the library may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(sys::rmsnorm_status);

impl Status {
    /// A required operand is absent.
    pub const NULL: Self = Self(sys::RMSNORM_ERROR_NULL);
    /// The library is older than this crate, and does not know an operand or an option.
    pub const STRUCT_SIZE: Self = Self(sys::RMSNORM_ERROR_STRUCT_SIZE);
    /// An element type that the operand cannot have.
    pub const DTYPE: Self = Self(sys::RMSNORM_ERROR_DTYPE);
    /// A wrong number of dimensions, rows without elements, or shapes that differ.
    pub const SHAPE: Self = Self(sys::RMSNORM_ERROR_SHAPE);
    /// Strides that the operand cannot have, or that leave the slice.
    pub const LAYOUT: Self = Self(sys::RMSNORM_ERROR_LAYOUT);
    /// An output shares memory with another operand.
    pub const OVERLAP: Self = Self(sys::RMSNORM_ERROR_OVERLAP);
    /// An option or a field of a context has no possible value.
    pub const OPTION: Self = Self(sys::RMSNORM_ERROR_OPTION);
    /// Operands exclude or lack each other.
    pub const OPERAND: Self = Self(sys::RMSNORM_ERROR_OPERAND);
    /// A target that is unknown, or that this CPU cannot run.
    pub const TARGET: Self = Self(sys::RMSNORM_ERROR_TARGET);
    /// Out of memory.
    pub const MEMORY: Self = Self(sys::RMSNORM_ERROR_MEMORY);
    /// Memory of another device.
    pub const DEVICE: Self = Self(sys::RMSNORM_ERROR_DEVICE);

    /// The number in the C interface.
    pub fn code(self) -> i32 {
        self.0
    }
}

/// Such as "out of memory".
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the function takes any number.
        f.write_str(unsafe { constant_text(sys::rmsnorm_status_text(self.0)) })
    }
}

/// Why a call failed. It has written nothing.
///
/// The text names the argument, its value and what is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of the error.
    pub status: Status,
    message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn refuse<T>(status: Status, message: String) -> Result<T> {
    Err(Error { status, message })
}

/// The result of a function of the library, which this thread has just called.
pub(crate) fn check(status: sys::rmsnorm_status) -> Result<()> {
    if status == sys::RMSNORM_OK {
        return Ok(());
    }
    // SAFETY: the text is valid until the next failing call of this thread, and copied here.
    let message = unsafe { CStr::from_ptr(sys::rmsnorm_error_message()) };
    refuse(Status(status), message.to_string_lossy().into_owned())
}

/// The text at a pointer from the library.
///
/// # Safety
/// The text ends with a NUL, and lives for 'a.
pub(crate) unsafe fn constant_text<'a>(text: *const std::os::raw::c_char) -> &'a str {
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().expect("texts of the library are ASCII")
}
