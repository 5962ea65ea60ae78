// SPDX-License-Identifier: Apache-2.0
//! Finds the installed library: in RMSNORM_LIB_DIR, or by the command pkg-config. The linker takes the
//! shared library, unless RMSNORM_STATIC is set or there is only a static one.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{exit, Command};

const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");
const MINOR: &str = env!("CARGO_PKG_VERSION_MINOR");
const HELP: &str =
    "Where pkg-config does not find it, set PKG_CONFIG_PATH to the folder of rmsnorm.pc. \
Without pkg-config, set RMSNORM_LIB_DIR to the folder of the library.";

fn fail(reason: &str) -> ! {
    eprintln!("rmsnorm-sys: {}", reason);
    eprintln!("Install the rmsnorm library, version {}.{}. {}", MAJOR, MINOR, HELP);
    exit(1);
}

fn variable(name: &str) -> Option<OsString> {
    println!("cargo:rerun-if-env-changed={}", name);
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The folder of the library.
fn folder() -> PathBuf {
    if let Some(folder) = variable("RMSNORM_LIB_DIR") {
        return folder.into();
    }
    variable("PKG_CONFIG_PATH");
    variable("PKG_CONFIG_LIBDIR");
    let program = variable("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    // Before 1.0 a minor version may break its callers.
    let oldest = format!("rmsnorm >= {}.{}", MAJOR, MINOR);
    let next = format!("rmsnorm < {}.{}", MAJOR, MINOR.parse::<u32>().unwrap() + 1);
    let done = Command::new(&program)
        .args(["--libs-only-L", &oldest, &next])
        .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1") // otherwise it leaves out -L/usr/lib
        .output();
    let done = done.unwrap_or_else(|error| {
        fail(&format!("cannot run {}: {}", program.to_string_lossy(), error));
    });
    if !done.status.success() {
        fail(String::from_utf8_lossy(&done.stderr).trim());
    }
    let flags = String::from_utf8_lossy(&done.stdout);
    flags.trim().trim_start_matches("-L").replace("\\ ", " ").into()
}

/// What a static library needs: the runtime of C++, and of OpenMP where the library uses it. Each
/// compiler's OpenMP has other functions, so the library tells which one it is.
fn link_runtimes(archive: &Path) {
    let bytes = fs::read(archive)
        .unwrap_or_else(|error| fail(&format!("cannot read {}: {}", archive.display(), error)));
    let names = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    let openmp = [("omp", "__kmpc_fork_call"), ("gomp", "GOMP_parallel")];
    for (library, _) in openmp.iter().filter(|(_, function)| names(function.as_bytes())) {
        println!("cargo:rustc-link-lib={}", library);
    }
    let is_llvm = names(b"_ZNSt3__1"); // its namespace, std::__1
    println!("cargo:rustc-link-lib={}", if is_llvm { "c++" } else { "stdc++" });
    println!("cargo:rustc-link-lib=m");
}

fn main() {
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation is made without the library
    }
    let folder = folder();
    println!("cargo:rustc-link-search=native={}", folder.display());
    let shared = ["librmsnorm.so", "librmsnorm.dylib", "librmsnorm.dll.a", "rmsnorm.lib"];
    let has_shared = shared.iter().any(|name| folder.join(name).exists());
    let archive = folder.join("librmsnorm.a");
    if variable("RMSNORM_STATIC").is_none() && has_shared {
        println!("cargo:rustc-link-lib=rmsnorm");
    } else if archive.exists() {
        println!("cargo:rustc-link-lib=static=rmsnorm");
        link_runtimes(&archive);
    } else {
        fail(&format!("{} holds no library to link", folder.display()));
    }
}
