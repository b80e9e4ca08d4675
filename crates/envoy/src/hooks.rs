//! The hooks that Envoy calls.
//!
//! Envoy calls the hooks of one stream one after the other, on one worker. But a callback may call another hook of
//! the same stream before it returns: a local reply is encoded at once. So a filter is shared, never borrowed
//! mutably; and after a local reply the filter is not used any more, since the stream may be destroyed by then. A
//! panic would end Envoy: each hook catches it.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::abi::{Flow, Host, Level, Pointer, Stream, Text, log, look_up};
use crate::configuration::{Configured, Route};
use crate::filter::Filter;
use crate::log::start as start_log;

/// A filter, with its configuration.
struct Made {
    configured: *const Configured,
    /// `None`: a panic while it was made. Its request gets the outcome of a failure.
    filter: Option<Filter>,
}

/// Panics that no configuration has shown yet.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Logs and counts a panic.
fn caught() {
    PANICS.fetch_add(1, Relaxed);
    log(Level::Error, "tidegate: a hook panicked");
}

/// Calls `body`. If it panics, the result is `otherwise`.
fn guarded<T>(otherwise: impl FnOnce() -> T, body: impl FnOnce() -> T) -> T {
    let body = AssertUnwindSafe(|| {
        panic_for_test(&body);
        body()
    });
    catch_unwind(body).unwrap_or_else(|_| {
        caught();
        otherwise()
    })
}

/// Panics in the hook that TIDEGATE_PANICS_IN names, in builds with assertions. The type of a hook's closure has its
/// name.
#[allow(clippy::disallowed_methods, reason = "for tests alone: shipped builds check no assertions")]
fn panic_for_test<Hook>(_: &Hook) {
    if cfg!(debug_assertions) {
        let name = std::env::var("TIDEGATE_PANICS_IN").unwrap_or_default();
        let is_named = !name.is_empty() && std::any::type_name::<Hook>().contains(&name);
        assert!(!is_named, "as TIDEGATE_PANICS_IN says");
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    guarded(null, || match look_up() {
        Ok(version) => {
            start_log();
            version.as_ptr()
        }
        Err(missing) => {
            log(Level::Error, &format!("tidegate: {missing}"));
            null()
        }
    })
}

/// # Safety
/// The texts are Envoy's.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    host: Pointer,
    _name: Text,
    text: Text,
) -> *const Configured {
    guarded(null, || {
        // SAFETY: both are Envoy's, for the time of the hook.
        let (host, text) = unsafe { (Host::of(host), text.bytes()) };
        made(Configured::new(&host, text))
    })
}

/// # Safety
/// The configuration was made by `config_new`, and nothing uses it any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(configured: *const Configured) {
    // SAFETY: as above.
    guarded(|| (), || drop(unsafe { Box::from_raw(configured.cast_mut()) }));
}

/// # Safety
/// The configuration was made by `config_new`, and is not destroyed.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
    host: Pointer,
    configured: *const Configured,
    _event: u64,
) {
    // SAFETY: as above.
    guarded(|| (), || unsafe { (*configured).show_stats(&Host::of(host), PANICS.swap(0, Relaxed)) });
}

/// # Safety
/// The texts are Envoy's.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(
    _name: Text,
    text: Text,
) -> *const Route {
    // SAFETY: it is Envoy's, for the time of the hook.
    guarded(null, || made(Route::new(unsafe { text.bytes() })))
}

/// # Safety
/// The configuration was made by `per_route_config_new`, and nothing uses it any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_destroy(route: *const Route) {
    // SAFETY: as above.
    guarded(|| (), || drop(unsafe { Box::from_raw(route.cast_mut()) }));
}

/// Hands a new object to Envoy, or logs why there is none: Envoy itself only says that it failed.
fn made<T>(made: Result<T, String>) -> *const T {
    match made {
        Ok(made) => Box::into_raw(Box::new(made)),
        Err(why) => {
            log(Level::Error, &format!("tidegate: {why}"));
            null()
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_new(
    configured: *const Configured,
    _stream: Pointer,
) -> *const Made {
    let made = |filter| Box::into_raw(Box::new(Made { configured, filter })).cast_const();
    guarded(|| made(None), || made(Some(Filter::default())))
}

/// # Safety
/// The filter was made by `new`, and nothing uses it any more.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(made: *const Made) {
    guarded(
        || (),
        || {
            // SAFETY: as above.
            let made = unsafe { Box::from_raw(made.cast_mut()) };
            made.filter.iter().for_each(Filter::on_destroy);
        },
    );
}

/// Calls `hook` with the filter and its stream. If it panics, the request gets the outcome of a failure.
///
/// # Safety
/// Both are Envoy's and ours, for the time of the hook.
unsafe fn on<T>(
    envoy: Pointer,
    made: *const Made,
    otherwise: impl FnOnce(&Configured, &mut Stream<'_>) -> T,
    hook: impl FnOnce(&Filter, &Configured, &mut Stream<'_>) -> T,
) -> T {
    // SAFETY: as the caller promises. Envoy keeps a configuration until its last filter is destroyed, and a filter's
    // own object for some time after; so this is also true when the hook has ended the stream.
    let (made, configured, mut stream) = unsafe { (&*made, &*(*made).configured, Stream::of(envoy)) };
    let Some(filter) = &made.filter else { return otherwise(configured, &mut stream) };
    let hook = AssertUnwindSafe(|| {
        panic_for_test(&hook);
        hook(filter, configured, &mut stream)
    });
    catch_unwind(hook).unwrap_or_else(|_| {
        caught();
        otherwise(configured, &mut stream)
    })
}

/// # Safety
/// As `on`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    envoy: Pointer,
    made: *const Made,
    _is_end: bool,
) -> u32 {
    // SAFETY: as the caller promises.
    let flow = unsafe {
        on(envoy, made, Configured::failed, |filter, configured, stream| {
            let route = route(stream);
            filter.on_request(configured, route, stream)
        })
    };
    flow as u32
}

/// # Safety
/// As `on`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    envoy: Pointer,
    made: *const Made,
    _event: u64,
) {
    let go_on = |flow, stream: &mut Stream<'_>| {
        if flow == Flow::GoOn {
            stream.go_on()
        }
    };
    // SAFETY: as the caller promises.
    unsafe {
        on(
            envoy,
            made,
            |configured, stream| go_on(configured.failed(stream), stream),
            |filter, configured, stream| {
                if let Some(flow) = filter.on_wake(configured, stream) {
                    go_on(flow, stream);
                }
            },
        );
    }
}

/// # Safety
/// As `on`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    envoy: Pointer,
    made: *const Made,
    _is_end: bool,
) -> u32 {
    // SAFETY: as the caller promises.
    unsafe { on(envoy, made, |_, _| (), Filter::on_response) };
    0
}

/// # Safety
/// As `on`.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(envoy: Pointer, made: *const Made) {
    // SAFETY: as the caller promises.
    unsafe { on(envoy, made, |_, _| (), Filter::on_end) };
}

/// The configuration of the route of a stream.
///
/// # Safety
/// The stream is Envoy's.
unsafe fn route<'r>(stream: &Stream<'_>) -> Option<&'r Route> {
    // SAFETY: it was made by the hook for routes, and lives as long as the route, which the stream keeps alive.
    unsafe { stream.route().cast::<Route>().as_ref() }
}

/// Hooks that let everything pass. Envoy refuses a module that lacks one.
macro_rules! pass {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($(_: $argument),*) $(-> $result)? {
                $(<$result>::default())?
            }
        )*
    };
}

pass! {
    envoy_dynamic_module_on_http_filter_request_body(Pointer, *const Made, bool) -> u32;
    envoy_dynamic_module_on_http_filter_request_trailers(Pointer, *const Made) -> u32;
    envoy_dynamic_module_on_http_filter_response_body(Pointer, *const Made, bool) -> u32;
    envoy_dynamic_module_on_http_filter_response_trailers(Pointer, *const Made) -> u32;
    envoy_dynamic_module_on_http_filter_http_callout_done(Pointer, *const Made, u64, u32, Pointer, usize, Pointer, usize);
    envoy_dynamic_module_on_http_filter_http_stream_headers(Pointer, *const Made, u64, Pointer, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_data(Pointer, *const Made, u64, Pointer, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_trailers(Pointer, *const Made, u64, Pointer, usize);
    envoy_dynamic_module_on_http_filter_http_stream_complete(Pointer, *const Made, u64);
    envoy_dynamic_module_on_http_filter_http_stream_reset(Pointer, *const Made, u64, u32);
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(Pointer, *const Made);
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(Pointer, *const Made);
}
