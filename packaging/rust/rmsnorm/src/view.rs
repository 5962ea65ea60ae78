// SPDX-License-Identifier: Apache-2.0
use crate::error::refuse;
use crate::{Result, Status};
use rmsnorm_sys as sys;
use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;

/// The type of the elements of a slice.
///
/// A program may implement it for another type that holds an f16 or a bf16.
///
/// # Safety
/// The type has the size, the alignment and the bits of `DTYPE`, and any bits are a value of it.
pub unsafe trait Element: Copy {
    /// Its name for the library.
    const DTYPE: Dtype;
}

/// The element types, each with its type in Rust and its number in the C interface.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $dtype:ident($element:ty) = $constant:ident,)*) => {
        /// Element types.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum Dtype {
            $($(#[$doc])* $dtype = sys::$constant,)*
        }

        $(
            // SAFETY: the library's type is this one.
            unsafe impl Element for $element {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )*
    };
}
dtypes! {
    /// IEEE binary32
    F32(f32) = RMSNORM_F32,
    /// IEEE binary16
    F16(F16) = RMSNORM_F16,
    /// bfloat16, the upper half of binary32
    Bf16(Bf16) = RMSNORM_BF16,
    /// IEEE binary64, for sums of squares
    F64(f64) = RMSNORM_F64,
    /// A signed integer of 8 bits, for quantised outputs
    I8(i8) = RMSNORM_I8,
}

macro_rules! bits {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(
            /// The bits.
            pub u16,
        );

        impl $name {
            /// The numbers with these bits.
            pub fn slice(bits: &[u16]) -> &[Self] {
                // SAFETY: the type is a u16.
                unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
            }
            /// The numbers with these bits, to be written.
            pub fn slice_mut(bits: &mut [u16]) -> &mut [Self] {
                // SAFETY: the type is a u16.
                unsafe { std::slice::from_raw_parts_mut(bits.as_mut_ptr().cast(), bits.len()) }
            }
        }
    };
}
bits! {
    /// The bits of an IEEE binary16 number. The library converts and computes; this type only names them.
    ///
    /// Slices of `half::f16` become `F16::slice(x.reinterpret_cast())`.
    F16
}
bits! {
    /// The bits of a bfloat16 number. The library converts and computes; this type only names them.
    ///
    /// Slices of `half::bf16` become `Bf16::slice(x.reinterpret_cast())`.
    Bf16
}

/// The two kinds of view, which differ in the slices that they are made from.
macro_rules! views {
    ($($(#[$doc:meta])* $view:ident from $($slice:ty $([$size:ident])?, $data:ident;)*)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $view<'a> {
            pub(crate) raw: sys::rmsnorm_view,
            memory: PhantomData<&'a Cell<u8>>,
        }

        impl $view<'_> {
            /// Rows of `d` elements, one after the other.
            pub fn rows(self, d: usize) -> Result<Self> {
                Ok(Self { raw: rows(self.raw, d)?, ..self })
            }
            /// All elements in a shape of 1 to 8 dimensions, in C order.
            pub fn reshape(self, shape: &[usize]) -> Result<Self> {
                Ok(Self { raw: reshape(self.raw, shape)?, ..self })
            }
            /// A shape of 1 to 8 dimensions, where the first element is the one at `start` of the
            /// slice, and the next one in dimension i lies `strides[i]` elements further on.
            pub fn strided(self, start: usize, shape: &[usize], strides: &[isize]) -> Result<Self> {
                Ok(Self { raw: strided(self.raw, start, shape, strides)?, ..self })
            }
        }

        $(impl<'a, T: Element $(, const $size: usize)?> From<$slice> for $view<'a> {
            fn from(slice: $slice) -> Self {
                let mut raw = sys::rmsnorm_view {
                    data: slice.$data() as *const c_void,
                    dtype: T::DTYPE as sys::rmsnorm_dtype,
                    ndim: 1,
                    shape: [0; sys::RMSNORM_MAX_DIMS],
                    stride: [0; sys::RMSNORM_MAX_DIMS],
                };
                raw.shape[0] = slice.len();
                raw.stride[0] = 1;
                Self { raw, memory: PhantomData }
            }
        })*
    )*};
}
views! {
    /// Where the rows of an input lie in a slice.
    ///
    /// A view of a slice has one dimension, such as a weight has. [`rows`](Self::rows),
    /// [`reshape`](Self::reshape) and [`strided`](Self::strided) give it others, and refuse what does not
    /// fit into the slice. The last dimension is the row of d elements.
    ///
    /// A view belongs to its thread, because a [`ViewMut`] can be turned into one.
    ///
    /// ```
    /// use rmsnorm::View;
    ///
    /// let x = [0.0f32; 24];
    /// assert!(View::from(&x).rows(8).is_ok());
    /// assert!(View::from(&x).reshape(&[2, 3, 4]).is_ok());
    /// // The second half of each row of 8.
    /// assert!(View::from(&x).strided(4, &[3, 4], &[8, 1]).is_ok());
    /// assert!(View::from(&x).strided(8, &[3, 4], &[8, 1]).is_err());
    /// ```
    View from
        &'a [T], as_ptr;
        &'a Vec<T>, as_ptr;
        &'a [T; N] [N], as_ptr;

    /// Where the rows of an output lie in a slice.
    ///
    /// It is made as a [`View`] is, from a slice that may be written, or from cells.
    ///
    /// A call that works in place has a view of the output and, converted, the same view as the input:
    ///
    /// ```
    /// use rmsnorm::{norm, Options, ViewMut};
    ///
    /// let mut stream = [3.0f32, 4.0, 6.0, 8.0];
    /// let y = ViewMut::from(&mut stream).rows(2)?;
    /// norm(y.into(), None, y, &Options::default())?;
    /// # Ok::<(), rmsnorm::Error>(())
    /// ```
    ///
    /// Copies of a view stay on one thread, so no two calls with the same memory run at once. A call
    /// refuses an output that overlaps another operand in any other way.
    ViewMut from
        &'a mut [T], as_mut_ptr;
        &'a mut Vec<T>, as_mut_ptr;
        &'a mut [T; N] [N], as_mut_ptr;
        &'a [Cell<T>], as_ptr;
}

impl<'a> From<ViewMut<'a>> for View<'a> {
    fn from(view: ViewMut<'a>) -> Self {
        Self { raw: view.raw, memory: PhantomData }
    }
}

fn rows(view: sys::rmsnorm_view, d: usize) -> Result<sys::rmsnorm_view> {
    let count = elements(&view)?;
    if d == 0 || count % d != 0 {
        return refuse(Status::SHAPE, format!("view: {count} elements are no rows of {d}"));
    }
    reshape(view, &[count / d, d])
}

fn reshape(view: sys::rmsnorm_view, shape: &[usize]) -> Result<sys::rmsnorm_view> {
    let count = elements(&view)?;
    let product = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    if product != Some(count) {
        return refuse(Status::SHAPE, format!("view: shape {shape:?} for {count} elements"));
    }
    let mut strides = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        // An overflow is possible where another size is 0.
        strides[i - 1] = strides[i].wrapping_mul(shape[i] as isize);
    }
    strided(view, 0, shape, &strides)
}

fn strided(
    mut view: sys::rmsnorm_view,
    start: usize,
    shape: &[usize],
    strides: &[isize],
) -> Result<sys::rmsnorm_view> {
    let count = elements(&view)?;
    let ndim = shape.len();
    let layout = || format!("view: shape {shape:?} with strides {strides:?}");
    if !(1..=sys::RMSNORM_MAX_DIMS).contains(&ndim) || strides.len() != ndim {
        return refuse(Status::SHAPE, layout() + "; 1 to 8 of each");
    }
    view.ndim = ndim as i32;
    view.shape[..ndim].copy_from_slice(shape);
    view.stride[..ndim].copy_from_slice(strides);
    if shape.contains(&0) {
        return Ok(view); // no element, wherever it would lie
    }
    let (mut first, mut last) = (start as i128, start as i128);
    for (&size, &stride) in shape.iter().zip(strides) {
        let reach = (size - 1) as i128 * stride as i128;
        let side = if stride < 0 { &mut first } else { &mut last };
        *side = side.saturating_add(reach);
    }
    if first < 0 || last >= count as i128 {
        let reach = format!("reaches from element {first} to {last} of {count}");
        return refuse(Status::LAYOUT, format!("{} from element {start} {reach}", layout()));
    }
    // SAFETY: the function takes any number.
    let size = unsafe { sys::rmsnorm_dtype_size(view.dtype) };
    view.data = view.data.cast::<u8>().wrapping_add(start * size).cast();
    Ok(view)
}

/// The number of elements of a view that is still a whole slice.
fn elements(view: &sys::rmsnorm_view) -> Result<usize> {
    if view.ndim == 1 && view.stride[0] == 1 {
        return Ok(view.shape[0]);
    }
    refuse(Status::SHAPE, "view: it has a shape already; start from the slice".into())
}

/// What the compiler refuses.
///
/// A view that outlives its slice:
///
/// ```compile_fail,E0597
/// let view = {
///     let x = [1.0f32];
///     rmsnorm::View::from(&x)
/// };
/// println!("{:?}", view);
/// ```
///
/// A slice that is read while a prepared call may write to it:
///
/// ```compile_fail,E0502
/// use rmsnorm::{Call, ForwardOperands, Options, Prepared, ViewMut};
///
/// let mut x = [1.0f32];
/// let y = ViewMut::from(&mut x);
/// let operands = ForwardOperands { x: Some(y.into()), y: Some(y), ..ForwardOperands::default() };
/// let mut norm = Prepared::new(&[Call::new(operands, &Options::default())], None).unwrap();
/// println!("{:?}", x);
/// norm.run();
/// ```
///
/// A view that goes to another thread, or is shared with it:
///
/// ```compile_fail,E0277
/// fn send(_: impl Send) {}
/// send(rmsnorm::View::from(&[1.0f32]));
/// ```
///
/// ```compile_fail,E0277
/// fn share(_: impl Sync) {}
/// share(rmsnorm::View::from(&[1.0f32]));
/// ```
///
/// A layer that is changed while a call uses it:
///
/// ```compile_fail,E0502
/// use rmsnorm::{Call, Context, Dtype, ForwardOperands, Options, Prepared, RmsNorm};
///
/// let mut layer = RmsNorm::new(1, Dtype::F32, &Options::default(), &Context::default()).unwrap();
/// let mut norm = Prepared::new(&[Call::by(&layer, ForwardOperands::default())], None).unwrap();
/// layer.reset_weight().unwrap();
/// norm.run();
/// ```
#[cfg(doctest)]
pub struct Refused;
