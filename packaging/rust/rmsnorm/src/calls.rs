// SPDX-License-Identifier: Apache-2.0
use crate::error::check;
use crate::operands::{pointer, RawOperands};
use crate::{
    BackwardOperands, Context, Executor, ForwardOperands, Options, Result, RmsNorm, View, ViewMut,
};
use rmsnorm_sys as sys;
use std::marker::PhantomData;
use std::ptr::{null, null_mut, NonNull};

/// The norm of the rows of x, and what comes before and after it.
///
/// ```
/// use rmsnorm::{forward, Context, ForwardOperands, Options, View, ViewMut};
///
/// let x = [3.0f32, 4.0, 6.0, 8.0];
/// let (mut y, mut rstd) = ([0.0f32; 4], [0.0f32; 2]);
/// let operands = ForwardOperands {
///     x: Some(View::from(&x).rows(2)?),
///     y: Some(ViewMut::from(&mut y).rows(2)?),
///     rstd: Some(ViewMut::from(&mut rstd)),
///     ..ForwardOperands::default()
/// };
/// forward(&operands, &Options::default(), &Context::default())?;
/// # Ok::<(), rmsnorm::Error>(())
/// ```
pub fn forward(operands: &ForwardOperands, options: &Options, context: &Context) -> Result<()> {
    // SAFETY: views are of memory that is there, and of their thread.
    check(unsafe { sys::rmsnorm_forward(&operands.raw(), &options.raw(), &context.raw()) })
}

/// The gradients of a loss by x, by the weight and by the bias, from dy, the gradient by y.
///
/// The options are the same as in the forward call.
pub fn backward(operands: &BackwardOperands, options: &Options, context: &Context) -> Result<()> {
    // SAFETY: views are of memory that is there, and of their thread.
    check(unsafe { sys::rmsnorm_backward(&operands.raw(), &options.raw(), &context.raw()) })
}

/// y = norm of x: [`forward`] with the usual operands and the default context.
pub fn norm(x: View, weight: Option<View>, y: ViewMut, options: &Options) -> Result<()> {
    let operands = ForwardOperands { x: Some(x), weight, y: Some(y), ..ForwardOperands::default() };
    forward(&operands, options, &Context::default())
}

/// residual_out = residual + x and y = norm of residual_out: [`forward`] with these operands and the
/// default context.
pub fn add_norm(
    x: View,
    residual: View,
    weight: Option<View>,
    residual_out: ViewMut,
    y: ViewMut,
    options: &Options,
) -> Result<()> {
    let operands = ForwardOperands {
        x: Some(x),
        residual: Some(residual),
        weight,
        residual_out: Some(residual_out),
        y: Some(y),
        ..ForwardOperands::default()
    };
    forward(&operands, options, &Context::default())
}

/// A call for [`forward_all`] or [`Prepared`], by options or by a layer.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a, Operands = ForwardOperands<'a>> {
    operands: Operands,
    options: Option<sys::rmsnorm_options>,
    layer: Option<&'a RmsNorm>,
}

impl<'a, Operands> Call<'a, Operands> {
    /// A call of [`forward`] or [`backward`].
    pub fn new(operands: Operands, options: &Options) -> Self {
        Self { operands, options: Some(options.raw()), layer: None }
    }
    /// A call of [`RmsNorm::forward`] or [`RmsNorm::backward`].
    pub fn by(layer: &'a RmsNorm, operands: Operands) -> Self {
        Self { operands, options: None, layer: Some(layer) }
    }
}

/// Hands the calls and their context to a function of the library.
fn with_calls<O: RawOperands>(
    calls: &[Call<'_, O>],
    context: Option<&Context>,
    function: impl FnOnce(&[sys::rmsnorm_call], *const sys::rmsnorm_context) -> sys::rmsnorm_status,
) -> Result<()> {
    let operands: Vec<_> = calls.iter().map(|call| call.operands.raw()).collect();
    let calls = calls.iter().zip(&operands).map(|(call, operands)| sys::rmsnorm_call {
        module: call.layer.map_or(null(), RmsNorm::raw),
        operands,
        options: pointer(&call.options),
    });
    check(function(&calls.collect::<Vec<_>>(), pointer(&context.map(Context::raw))))
}

/// Several norms in one parallel region, each with separate operands and options.
///
/// Separate calls give the same results. The heads of q and k in a fused buffer, in place:
///
/// ```
/// use rmsnorm::{forward_all, Call, Context, ForwardOperands, Options, ViewMut};
///
/// let (tokens, heads, kv_heads, head) = (3, 4, 2, 16);
/// let token = (heads + 2 * kv_heads) * head;
/// let mut qkv = vec![1.0f32; tokens * token];
///
/// let qkv = ViewMut::from(&mut qkv);
/// let strides = [token as isize, head as isize, 1];
/// let q = qkv.strided(0, &[tokens, heads, head], &strides)?;
/// let k = qkv.strided(heads * head, &[tokens, kv_heads, head], &strides)?;
/// fn in_place(rows: ViewMut<'_>) -> ForwardOperands<'_> {
///     ForwardOperands { x: Some(rows.into()), y: Some(rows), ..ForwardOperands::default() }
/// }
/// let options = Options::default();
/// let calls = [Call::new(in_place(q), &options), Call::new(in_place(k), &options)];
/// forward_all(&calls, &Context::default())?;
/// # Ok::<(), rmsnorm::Error>(())
/// ```
pub fn forward_all(calls: &[Call], context: &Context) -> Result<()> {
    // SAFETY: views are of memory that is there, and of their thread.
    with_calls(calls, Some(context), |calls, context| unsafe {
        sys::rmsnorm_forward_all(calls.as_ptr(), calls.len(), context)
    })
}

/// Calls that are checked and planned once, and run many times on the same memory.
///
/// A run reads what lies in the memory at that time. The operands stay borrowed, so memory whose values
/// change between runs is lent as cells:
///
/// ```
/// use rmsnorm::{Call, ForwardOperands, Options, Prepared, ViewMut};
/// use std::cell::Cell;
///
/// let mut buffer = [0.0f32; 2];
/// let token = Cell::from_mut(&mut buffer[..]).as_slice_of_cells();
/// let y = ViewMut::from(token);
/// let operands = ForwardOperands { x: Some(y.into()), y: Some(y), ..ForwardOperands::default() };
/// let mut norm = Prepared::new(&[Call::new(operands, &Options::default())], None)?;
/// for value in [1.0, 2.0] {
///     token[0].set(3.0 * value);
///     token[1].set(4.0 * value);
///     norm.run();
///     println!("{} {}", token[0].get(), token[1].get());
/// }
/// # Ok::<(), rmsnorm::Error>(())
/// ```
#[derive(Debug)]
pub struct Prepared<'a> {
    raw: NonNull<sys::rmsnorm_prepared>,
    _executor: Option<Executor>, // the library has its address
    _operands: PhantomData<View<'a>>,
}

impl<'a> Prepared<'a> {
    /// Calls as [`forward_all`] takes them. A single call by a layer may do without a context: then it is
    /// the layer's.
    pub fn new(calls: &[Call<'a>], context: Option<&Context>) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: views are of memory that is there, and of their thread.
        with_calls(calls, context, |calls, context| unsafe {
            sys::rmsnorm_prepare(&mut raw, calls.as_ptr(), calls.len(), context)
        })?;
        Ok(Self::own(raw, context))
    }
    /// A call as [`backward`] or [`RmsNorm::backward`] takes it, the latter perhaps without a context.
    pub fn backward(
        call: &Call<'a, BackwardOperands<'a>>,
        context: Option<&Context>,
    ) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: views are of memory that is there, and of their thread.
        with_calls(std::slice::from_ref(call), context, |calls, context| unsafe {
            sys::rmsnorm_prepare_backward(&mut raw, calls.as_ptr(), context)
        })?;
        Ok(Self::own(raw, context))
    }

    fn own(raw: *mut sys::rmsnorm_prepared, context: Option<&Context>) -> Self {
        Self {
            raw: NonNull::new(raw).expect("the library prepared a call"),
            _executor: context.and_then(|context| context.executor.clone()),
            _operands: PhantomData,
        }
    }

    /// Makes the calls. It allocates nothing and cannot fail.
    pub fn run(&mut self) {
        // SAFETY: the memory is borrowed, and this thread has it.
        let status = unsafe { sys::rmsnorm_run(self.raw.as_ptr()) };
        debug_assert_eq!(status, sys::RMSNORM_OK);
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody else uses it.
        unsafe { sys::rmsnorm_prepared_destroy(self.raw.as_ptr()) }
    }
}
