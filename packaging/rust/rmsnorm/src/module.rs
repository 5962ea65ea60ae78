// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, constant_text, refuse};
use crate::operands::{pointer, RawOperands};
use crate::{
    BackwardOperands, Context, Dtype, Element, Executor, ForwardOperands, Options, Result, Status,
    View, ViewMut,
};
use rmsnorm_sys as sys;
use std::ffi::c_void;
use std::fmt;
use std::ptr::{null, null_mut, NonNull};

/// A layer's norm with its weight, of ones at first, and perhaps a bias and a post-norm weight.
///
/// An engine keeps one for each norm: calls look up, convert and allocate nothing. Calls on one layer
/// may run at the same time in many threads.
///
/// ```
/// use rmsnorm::{Bf16, Context, Dtype, Options, RmsNorm, View};
///
/// let mut norm = RmsNorm::new(2, Dtype::Bf16, &Options::default(), &Context::default())?;
/// norm.set_weight(View::from(&[1.0f32, 2.0]))?;
///
/// // A decoder's step: the residual stream is updated, and y is the input of the next part.
/// let layer = [Bf16(0x3f80), Bf16(0x4000)];
/// let mut stream = [2.0f32, 2.0];
/// let mut y = [Bf16(0); 2];
/// norm.add_norm_rows(&layer, &mut stream, &mut y)?;
/// assert_eq!(stream, [3.0, 4.0]);
/// # Ok::<(), rmsnorm::Error>(())
/// ```
#[derive(Debug)]
pub struct RmsNorm {
    raw: NonNull<sys::rmsnorm_module>,
    dtype: Dtype,
    options: Options,
    _executor: Option<Executor>, // the library has its address
}

// SAFETY: the library takes calls on one module from many threads, as long as none of them sets what
// it holds; those methods borrow it mutably.
unsafe impl Send for RmsNorm {}
// SAFETY: as above.
unsafe impl Sync for RmsNorm {}

impl RmsNorm {
    /// A norm of rows of `d` elements, with a weight that is kept in `dtype`: f32, f16 or bf16.
    ///
    /// `context` is for calls that bring none.
    pub fn new(d: usize, dtype: Dtype, options: &Options, context: &Context) -> Result<Self> {
        let mut module = null_mut();
        // SAFETY: all pointers are to values of this call; the executor is kept below.
        check(unsafe {
            let (options, context) = (options.raw(), context.raw());
            sys::rmsnorm_module_create(&mut module, d, dtype as i32, &options, &context)
        })?;
        let raw = NonNull::new(module).expect("the library made a module");
        Ok(Self { raw, dtype, options: *options, _executor: context.executor.clone() })
    }

    pub(crate) fn raw(&self) -> *const sys::rmsnorm_module {
        self.raw.as_ptr()
    }

    /// Sets the weight from d elements of any type, rounded to the layer's.
    pub fn set_weight(&mut self, weight: View) -> Result<()> {
        // SAFETY: nobody else uses the module.
        check(unsafe { sys::rmsnorm_module_set_weight(self.raw.as_ptr(), &weight.raw) })
    }
    /// Writes the weight to d elements of any type.
    pub fn get_weight(&self, weight: ViewMut) -> Result<()> {
        // SAFETY: the view is of memory that may be written.
        check(unsafe { sys::rmsnorm_module_get_weight(self.raw(), &weight.raw) })
    }
    /// Sets the weight, and nothing else, to ones.
    pub fn reset_weight(&mut self) -> Result<()> {
        // SAFETY: nobody else uses the module.
        check(unsafe { sys::rmsnorm_module_reset_weight(self.raw.as_ptr()) })
    }
    /// Sets a bias from d elements of any type, rounded to the layer's, or removes it.
    pub fn set_bias(&mut self, bias: Option<View>) -> Result<()> {
        let bias = bias.map(|view| view.raw);
        // SAFETY: nobody else uses the module.
        check(unsafe { sys::rmsnorm_module_set_bias(self.raw.as_ptr(), pointer(&bias)) })
    }
    /// Sets a post-norm weight in the same way, or removes it.
    pub fn set_post_norm_weight(&mut self, weight: Option<View>) -> Result<()> {
        let weight = weight.map(|view| view.raw);
        // SAFETY: nobody else uses the module.
        check(unsafe {
            sys::rmsnorm_module_set_post_norm_weight(self.raw.as_ptr(), pointer(&weight))
        })
    }

    /// The elements of a row.
    pub fn d(&self) -> usize {
        // SAFETY: the module exists.
        unsafe { sys::rmsnorm_module_d(self.raw()) }
    }
    /// The type in which the weight is kept.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
    /// How it normalises.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// [`forward`](crate::forward) with the options and vectors of the layer. The operands bring no weight,
    /// and no bias and no post-norm weight that the layer has. Without a context the layer's is used.
    pub fn forward(&self, operands: &ForwardOperands, context: Option<&Context>) -> Result<()> {
        let context = context.map(Context::raw);
        // SAFETY: views are of memory that is there, and of their thread.
        check(unsafe {
            sys::rmsnorm_module_forward(self.raw(), &operands.raw(), pointer(&context))
        })
    }
    /// [`backward`](crate::backward) with the layer's weight and options. The operands bring
    /// no weight. Without a context the layer's is used.
    pub fn backward(&self, operands: &BackwardOperands, context: Option<&Context>) -> Result<()> {
        let context = context.map(Context::raw);
        // SAFETY: views are of memory that is there, and of their thread.
        check(unsafe {
            sys::rmsnorm_module_backward(self.raw(), &operands.raw(), pointer(&context))
        })
    }

    /// y = norm of x, for rows one after the other.
    pub fn norm_rows<T: Element>(&self, x: &[T], y: &mut [T]) -> Result<()> {
        self.norm_slices::<T, T>(Some(x), None, y)
    }
    /// x = norm of x, for rows one after the other.
    pub fn norm_rows_in_place<T: Element>(&self, x: &mut [T]) -> Result<()> {
        self.norm_slices::<T, T>(None, None, x)
    }
    /// residual = residual + x and y = norm of residual, for rows one after the other.
    ///
    /// A layer with a post-norm weight adds the norm of x by it instead of x: the boundary between two
    /// parts of a layer in Gemma 3.
    pub fn add_norm_rows<T: Element, R: Element>(
        &self,
        x: &[T],
        residual: &mut [R],
        y: &mut [T],
    ) -> Result<()> {
        self.norm_slices(Some(x), Some(residual), y)
    }
    /// The same with y in the place of x.
    pub fn add_norm_rows_in_place<T: Element, R: Element>(
        &self,
        x: &mut [T],
        residual: &mut [R],
    ) -> Result<()> {
        self.norm_slices(None, Some(residual), x)
    }
    /// The gradients of [`norm_rows`](Self::norm_rows), for rows one after the other. rstd has an element
    /// for each row, dw has d.
    pub fn backward_rows<T: Element>(
        &self,
        dy: &[T],
        x: &[T],
        rstd: Option<&[f32]>,
        dx: Option<&mut [T]>,
        dw: Option<&mut [f32]>,
    ) -> Result<()> {
        let rows = self.rows_in("dy", dy.len())?;
        check_length("x", x.len(), dy.len())?;
        check_length("rstd", rstd.map_or(rows, |rstd| rstd.len()), rows)?;
        check_length("dx", dx.as_ref().map_or(dy.len(), |dx| dx.len()), dy.len())?;
        check_length("dw", dw.as_ref().map_or(self.d(), |dw| dw.len()), self.d())?;
        // SAFETY: the lengths are right.
        check(unsafe {
            sys::rmsnorm_module_backward_rows(
                self.raw(),
                T::DTYPE as i32,
                rows,
                dy.as_ptr().cast(),
                x.as_ptr().cast(),
                rstd.map_or(null(), <[_]>::as_ptr),
                dx.map_or(null_mut(), |dx| dx.as_mut_ptr().cast()),
                dw.map_or(null_mut(), <[_]>::as_mut_ptr),
                null(),
            )
        })
    }

    /// y = norm of x, or residual = residual + x and y = norm of residual. Without x, y is in its place.
    fn norm_slices<T: Element, R: Element>(
        &self,
        x: Option<&[T]>,
        residual: Option<&mut [R]>,
        y: &mut [T],
    ) -> Result<()> {
        let (y_length, y) = (y.len(), y.as_mut_ptr());
        let (length, x) = x.map_or((y_length, y as *const T), |x| (x.len(), x.as_ptr()));
        let rows = self.rows_in("x", length)?;
        check_length("residual", residual.as_ref().map_or(length, |slice| slice.len()), length)?;
        check_length("y", y_length, length)?;
        let (module, dtype) = (self.raw(), T::DTYPE as i32);
        let (x, y) = (x.cast::<c_void>(), y.cast::<c_void>());
        // SAFETY: all have that many rows.
        check(unsafe {
            if let Some(residual) = residual {
                let residual = residual.as_mut_ptr().cast::<c_void>();
                sys::rmsnorm_module_add_norm_rows(
                    module,
                    dtype,
                    R::DTYPE as i32,
                    rows,
                    x,
                    residual,
                    residual,
                    y,
                    null_mut(),
                    null(),
                )
            } else {
                sys::rmsnorm_module_norm_rows(module, dtype, rows, x, y, null_mut(), null())
            }
        })
    }

    /// The number of rows in an operand.
    #[inline]
    fn rows_in(&self, name: &str, length: usize) -> Result<usize> {
        let d = self.d();
        if length % d != 0 {
            return refuse(Status::SHAPE, format!("{name}: {length} elements are no rows of {d}"));
        }
        Ok(length / d)
    }
}

#[inline]
fn check_length(name: &str, length: usize, wanted: usize) -> Result<()> {
    if length != wanted {
        return refuse(Status::SHAPE, format!("{name}: {length} elements; there must be {wanted}"));
    }
    Ok(())
}

/// Such as "RmsNorm(4096, eps=1e-05, bf16)".
impl fmt::Display for RmsNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the text lives as long as the module.
        f.write_str(unsafe { constant_text(sys::rmsnorm_module_describe(self.raw())) })
    }
}

impl Drop for RmsNorm {
    fn drop(&mut self) {
        // SAFETY: nobody else uses the module.
        unsafe { sys::rmsnorm_module_destroy(self.raw.as_ptr()) }
    }
}
