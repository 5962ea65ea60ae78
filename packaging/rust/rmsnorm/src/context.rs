// SPDX-License-Identifier: Apache-2.0
use crate::error::{check, constant_text, refuse};
use crate::options::choices;
use crate::{Result, Status};
use rmsnorm_sys as sys;
use std::ffi::{c_void, CStr, CString};
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;

choices! {
    /// Whether y or dx passes through the caches
    Stores {
        /// A result of 64 MiB and more, in rows of at least 4 KiB, does not
        BySize = RMSNORM_STORES_BY_SIZE,
        /// It does not, for a large result that is not read soon
        Streamed = RMSNORM_STORES_STREAMED,
        /// It does, for a caller who reads the result next
        Cached = RMSNORM_STORES_CACHED,
    }
}

/// On which threads and with which instructions a call runs. No bit of a result depends on it.
///
/// ```
/// use rmsnorm::Context;
///
/// let serial = Context { threads: 1, ..Context::default() };
/// ```
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// 1: serial. 0: as many as OpenMP would use, or for an executor a part for each CPU. Larger: the
    /// most threads, or parts.
    pub threads: u32,
    /// Runs the parts of a call instead of OpenMP
    pub executor: Option<Executor>,
    /// The instructions; by default the target that the variable `RMSNORM_TARGET` names, or the best
    pub target: Option<Target>,
    /// Whether y or dx passes through the caches
    pub stores: Stores,
}

impl Context {
    pub(crate) fn raw(&self) -> sys::rmsnorm_context {
        sys::rmsnorm_context {
            size: std::mem::size_of::<sys::rmsnorm_context>() as u32,
            threads: i32::try_from(self.threads).unwrap_or(i32::MAX),
            parallel_for: self.executor.as_ref().and(Some(parallel_for)),
            parallel_context: self.executor.as_ref().map_or(null(), |e| Arc::as_ptr(&e.0))
                as *mut c_void,
            target: self.target.map_or(null(), |target| target.0.as_ptr()),
            stores: self.stores as i32,
            reserved: 0,
        }
    }
}

/// An instruction set that the kernels are compiled for. Every target gives the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target(&'static CStr);

impl Target {
    /// The target that a name selects on this CPU, such as "AVX2", "NEON" or "reference".
    pub fn find(name: &str) -> Result<Self> {
        match CString::new(name) {
            Ok(name) => Self::found(name.as_ptr()),
            Err(_) => refuse(Status::TARGET, format!("target: {name:?} holds a NUL")),
        }
    }
    /// The target of calls that name none.
    pub fn chosen() -> Result<Self> {
        Self::found(null())
    }
    fn found(name: *const std::os::raw::c_char) -> Result<Self> {
        let mut exact = null();
        // SAFETY: the name is null or a text, and the exact one lives as long as the process.
        unsafe {
            check(sys::rmsnorm_find_target(name, &mut exact))?;
            Ok(Self(CStr::from_ptr(exact)))
        }
    }
    /// The exact name.
    pub fn name(self) -> &'static str {
        self.0.to_str().expect("texts of the library are ASCII")
    }
    /// The names of all targets in the library, best first. This CPU may lack some.
    pub fn names() -> impl Iterator<Item = &'static str> {
        // SAFETY: the function takes any number, and gives null or a constant text.
        let text = |index| unsafe {
            let name = sys::rmsnorm_target_name(index);
            (!name.is_null()).then(|| constant_text(name))
        };
        (0..).map_while(text)
    }
}

type Run = Box<dyn Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync>;

/// Threads of the caller that run the parts of a call: a pool, or threads of the scope.
///
/// ```
/// use rmsnorm::{Context, Executor};
///
/// // SAFETY: each part is run once, and no memory but its own is used.
/// let executor = unsafe {
///     Executor::new(|count, part| {
///         std::thread::scope(|scope| {
///             for index in 0..count {
///                 scope.spawn(move || part(index));
///             }
///         })
///     })
/// };
/// let context = Context { threads: 4, executor: Some(executor), ..Context::default() };
/// ```
#[derive(Clone)]
pub struct Executor(Arc<Run>);

impl Executor {
    /// `run(count, part)` calls `part` with each index below `count`, on any threads in any order, and
    /// returns when all are done. A panic in it aborts the process.
    ///
    /// # Safety
    /// `run` calls `part` once with each index, and does not itself use the memory of the call's operands.
    /// (Safe code could do so by a view in a thread-local variable, while other threads run parts.)
    pub unsafe fn new(
        run: impl Fn(usize, &(dyn Fn(usize) + Sync)) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Box::new(run)))
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Executor")
    }
}

unsafe extern "C" fn parallel_for(
    context: *mut c_void,
    count: usize,
    task: sys::rmsnorm_task,
    state: *mut c_void,
) {
    // SAFETY: a context points to the function of its executor, which whoever made the call keeps.
    let run = unsafe { &*context.cast::<Run>() };
    let task = task.expect("the library has a task");
    let state = AtomicPtr::new(state);
    // SAFETY: the library waits for the parts. Any thread may run one, so threads share the state.
    let part = |index| unsafe { task(state.load(Ordering::Relaxed), index) };
    // A panic must not pass through the library.
    if catch_unwind(AssertUnwindSafe(|| run(count, &part))).is_err() {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn defaults_are_the_library_s() {
        // SAFETY: the functions take nothing.
        let defaults = unsafe { (sys::rmsnorm_default_options(), sys::rmsnorm_default_context()) };
        let raw = (Options::default().raw(), Context::default().raw());
        assert_eq!(format!("{:?}", raw), format!("{:?}", defaults));
    }

    #[test]
    fn fields_reach_the_library() {
        let context = Context {
            threads: u32::MAX,
            target: Some(Target::find("reference").unwrap()),
            stores: Stores::Streamed,
            ..Context::default()
        };
        let raw = context.raw();
        assert_eq!((raw.threads, raw.stores), (i32::MAX, sys::RMSNORM_STORES_STREAMED));
        // SAFETY: the target has a name.
        assert_eq!(unsafe { constant_text(raw.target) }, "reference");
    }
}
