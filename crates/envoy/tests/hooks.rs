//! The library, loaded by a process that is no Envoy.
#![allow(unsafe_code, reason = "loading a library takes it")]

use std::ffi::{CString, c_char};

/// A missing callback would end the process at its first call.
#[test]
fn a_process_without_the_callbacks_is_refused() {
    let mut path = std::env::current_exe().expect("a test has a path");
    path.set_file_name("libtidegate.so");
    let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("a path has no nul");
    // SAFETY: the library runs nothing when it is loaded, and the hook has the type that abi.h gives it.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "{path:?} is not loaded");
        let hook = libc::dlsym(library, c"envoy_dynamic_module_on_program_init".as_ptr());
        assert!(!hook.is_null(), "the hook is not exported");
        let hook = std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> *const c_char>(hook);
        assert!(hook().is_null(), "a version would mean that it may be used");
    }
}
