//! The callbacks of Envoy that are used, behind safe types.
//!
//! Texts of Envoy are valid until the hook ends or something is set, so setters borrow the stream for a change.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;

use http::HeaderName;
use tidegate_engine::rules::{Metadata, MetadataSource};

/// A text, of Envoy's or of ours.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    start: *const u8,
    len: usize,
}

impl Text {
    const NONE: Self = Self { start: null(), len: 0 };

    const fn of(text: &[u8]) -> Self {
        Self { start: text.as_ptr(), len: text.len() }
    }

    /// # Safety
    /// It is a text of Envoy that does not change during `'t`, or none.
    pub unsafe fn bytes<'t>(self) -> &'t [u8] {
        match self.start.is_null() {
            true => &[],
            // SAFETY: as the caller promises.
            false => unsafe { std::slice::from_raw_parts(self.start, self.len) },
        }
    }
}

/// A header of a response.
#[repr(C)]
struct Header {
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
}

/// Which headers of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Headers {
    Request = 0,
    Response = 2,
    ResponseTrailer = 3,
}

/// What happens to a request, as `FilterHeadersStatus` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Flow {
    /// It goes on.
    GoOn = 0,
    /// The client was answered.
    Answered = 1,
    /// It waits, and Envoy reads no more of its body than it has room for, until the stream is woken.
    Wait = 4,
}

/// `source.address`: the address and port of the client that Envoy trusts.
const SOURCE_ADDRESS: u32 = 24;

/// How important a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Level {
    Trace = 0,
    Debug = 1,
    Info = 2,
    Warn = 3,
    Error = 4,
}

/// Something of Envoy's.
pub type Pointer = *mut c_void;

macro_rules! callbacks {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The callbacks of Envoy that are used.
        struct Callbacks {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Callbacks {
            /// Looks each one up.
            /// Fails with the name of one that this Envoy does not have. A call to it would end the process.
            fn look_up(symbol: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(
                            concat!("envoy_dynamic_module_callback_", stringify!($name), "\0").as_bytes(),
                        ) {
                            Ok(name) => name,
                            Err(_) => panic!("a name has one end"),
                        };
                        let found = symbol(NAME).ok_or(Missing(NAME))?;
                        // SAFETY: abi.h declares the function of this name with this type, in all versions that this crate
                        // says are supported.
                        unsafe {
                            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                                found,
                            )
                        }
                    },)*
                })
            }
        }
    };
}

callbacks! {
    log(u32, Text);
    log_enabled(u32) -> bool;
    http_get_header(Pointer, u32, Text, *mut Text, usize, *mut usize) -> bool;
    http_set_header(Pointer, u32, Text, Text) -> bool;
    http_send_response(Pointer, u32, *mut Header, usize, Text, Text);
    http_set_dynamic_metadata_number(Pointer, Text, Text, f64);
    http_set_dynamic_metadata_string(Pointer, Text, Text, Text);
    http_get_metadata_number(Pointer, u32, Text, Text, *mut f64) -> bool;
    http_get_metadata_string(Pointer, u32, Text, Text, *mut Text) -> bool;
    http_add_custom_flag(Pointer, Text);
    http_filter_get_attribute_string(Pointer, u32, *mut Text) -> bool;
    http_filter_continue_decoding(Pointer);
    http_filter_scheduler_new(Pointer) -> Pointer;
    http_filter_scheduler_commit(Pointer, u64);
    http_filter_scheduler_delete(Pointer);
    http_filter_config_define_counter(Pointer, Text, *mut Text, usize, *mut usize) -> u32;
    http_filter_increment_counter(Pointer, usize, *mut Text, usize, u64) -> u32;
    http_filter_config_define_gauge(Pointer, Text, *mut Text, usize, *mut usize) -> u32;
    http_filter_config_increment_counter(Pointer, usize, *mut Text, usize, u64) -> u32;
    http_filter_config_set_gauge(Pointer, usize, *mut Text, usize, u64) -> u32;
    http_filter_config_scheduler_new(Pointer) -> Pointer;
    http_filter_config_scheduler_commit(Pointer, u64);
    http_filter_config_scheduler_delete(Pointer);
    get_most_specific_route_config(Pointer) -> *const c_void;
}

/// A function of the process, by its name.
fn symbol(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name ends with a nul.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// A callback that this Envoy does not have.
#[derive(Debug)]
pub struct Missing(&'static CStr);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        write!(f, "this Envoy has no {} (expected Envoy 1.39 or 1.40)", name.to_string_lossy())
    }
}

/// A callback that Envoy 1.39 does not have.
const SINCE_1_40: &CStr = c"envoy_dynamic_module_callback_get_runtime_bool";

static CALLBACKS: OnceLock<Callbacks> = OnceLock::new();

/// Looks up all callbacks before any of them is used. Returns the version of the ABI that this Envoy has, because
/// Envoy warns of any other; the callbacks that are used here are the same in all of them.
/// Fails with the name of a callback that this Envoy does not have.
pub fn look_up() -> Result<&'static CStr, Missing> {
    let found = Callbacks::look_up(symbol)?;
    CALLBACKS.get_or_init(|| found);
    Ok(if symbol(SINCE_1_40).is_some() { c"v0.2.0" } else { c"v0.1.0" })
}

/// The callbacks. Envoy calls no hook unless all were found.
fn callbacks() -> &'static Callbacks {
    CALLBACKS.get().expect("they are looked up before any other hook is called")
}

/// Writes a line to Envoy's log, or to standard error before Envoy's log was found.
pub fn log(level: Level, line: &str) {
    match CALLBACKS.get() {
        // SAFETY: Envoy copies the text.
        Some(callbacks) => unsafe { (callbacks.log)(level as u32, Text::of(line.as_bytes())) },
        None => eprintln!("{line}"),
    }
}

/// Whether lines of this level are written.
pub fn log_enabled(level: Level) -> bool {
    // SAFETY: it may be called from any thread at any time.
    unsafe { (callbacks().log_enabled)(level as u32) }
}

/// A stream, during a hook.
pub struct Stream<'h> {
    envoy: Pointer,
    /// Not longer than the hook.
    hook: PhantomData<&'h ()>,
}

impl Stream<'_> {
    /// # Safety
    /// Envoy hands this stream to a hook, which runs for as long as the value is used.
    pub unsafe fn of(envoy: Pointer) -> Self {
        Self { envoy, hook: PhantomData }
    }

    /// The value at this place among those of a header.
    pub fn header(&self, headers: Headers, name: &str, place: usize) -> Option<&[u8]> {
        let mut value = Text::NONE;
        // SAFETY: the stream is Envoy's, as in all calls below. The text is valid until something is set, which
        // borrows the stream for a change.
        unsafe {
            let name = Text::of(name.as_bytes());
            let found = (callbacks().http_get_header)(
                self.envoy,
                headers as u32,
                name,
                &raw mut value,
                place,
                null_mut(),
            );
            found.then(|| value.bytes())
        }
    }

    /// A text in metadata.
    pub fn metadata_text(&self, of: &Metadata) -> Option<&[u8]> {
        let (source, namespace, key) = place(of);
        let mut value = Text::NONE;
        // SAFETY: as in `header`.
        unsafe {
            let get = callbacks().http_get_metadata_string;
            get(self.envoy, source, namespace, key, &raw mut value).then(|| value.bytes())
        }
    }

    /// A number in metadata.
    pub fn metadata_number(&self, of: &Metadata) -> Option<f64> {
        let (source, namespace, key) = place(of);
        let mut value = 0.0;
        // SAFETY: as in `header`.
        let found = unsafe {
            (callbacks().http_get_metadata_number)(self.envoy, source, namespace, key, &raw mut value)
        };
        found.then_some(value)
    }

    /// The address and port of the client.
    pub fn source_address(&self) -> Option<&[u8]> {
        let mut value = Text::NONE;
        // SAFETY: as in `header`.
        unsafe {
            let get = callbacks().http_filter_get_attribute_string;
            get(self.envoy, SOURCE_ADDRESS, &raw mut value).then(|| value.bytes())
        }
    }

    /// What the hook for routes made of the configuration of the request's most specific route, or null.
    pub fn route(&self) -> *const c_void {
        // SAFETY: as in `header`.
        unsafe { (callbacks().get_most_specific_route_config)(self.envoy) }
    }

    /// Sets a header, and removes others of this name.
    pub fn set_header(&mut self, headers: Headers, name: &str, value: &str) {
        let (name, value) = (Text::of(name.as_bytes()), Text::of(value.as_bytes()));
        // SAFETY: Envoy copies both.
        unsafe { (callbacks().http_set_header)(self.envoy, headers as u32, name, value) };
    }

    /// Sets a number in the dynamic metadata of the stream.
    pub fn set_number(&mut self, key: &str, number: f64) {
        let (namespace, key) = (Text::of(NAMESPACE.as_bytes()), Text::of(key.as_bytes()));
        // SAFETY: Envoy copies both.
        unsafe { (callbacks().http_set_dynamic_metadata_number)(self.envoy, namespace, key, number) }
    }

    /// Sets a text there.
    pub fn set_text(&mut self, key: &str, text: &str) {
        let [namespace, key, text] = [NAMESPACE, key, text].map(|text| Text::of(text.as_bytes()));
        // SAFETY: Envoy copies all of them.
        unsafe { (callbacks().http_set_dynamic_metadata_string)(self.envoy, namespace, key, text) }
    }

    /// Adds a flag of its own to the stream's response flags.
    pub fn add_flag(&mut self, flag: &str) {
        // SAFETY: Envoy copies it.
        unsafe { (callbacks().http_add_custom_flag)(self.envoy, Text::of(flag.as_bytes())) }
    }

    /// Adds one to a counter.
    pub fn count(&mut self, counter: Counter) {
        // SAFETY: the counter was defined without labels, by the configuration of this stream.
        unsafe { (callbacks().http_filter_increment_counter)(self.envoy, counter.0, null_mut(), 0, 1) };
    }

    /// Whether a client that speaks gRPC has sent the request.
    fn is_grpc(&self) -> bool {
        let of_type = self.header(Headers::Request, "content-type", 0).unwrap_or_default();
        of_type
            .strip_prefix(b"application/grpc")
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    }

    /// Answers the client, instead of the upstream.
    pub fn respond(&mut self, status: u16, headers: &[(HeaderName, String)], body: &str, details: &str) {
        let mut headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| Header {
                name: name.as_str().as_ptr(),
                name_len: name.as_str().len(),
                value: value.as_ptr(),
                value_len: value.len(),
            })
            .collect();
        if self.is_grpc() {
            // Otherwise Envoy would send OK. Its own filter sends UNAVAILABLE.
            let (name, value) = ("grpc-status", "14");
            let (name_len, value_len) = (name.len(), value.len());
            headers.push(Header { name: name.as_ptr(), name_len, value: value.as_ptr(), value_len });
        }
        let (body, details) = (Text::of(body.as_bytes()), Text::of(details.as_bytes()));
        // SAFETY: Envoy copies all of it before it returns.
        unsafe {
            (callbacks().http_send_response)(
                self.envoy,
                u32::from(status),
                headers.as_mut_ptr(),
                headers.len(),
                body,
                details,
            );
        }
    }

    /// Continues a request that waits.
    pub fn go_on(&mut self) {
        // SAFETY: as in `header`.
        unsafe { (callbacks().http_filter_continue_decoding)(self.envoy) }
    }

    /// Calls the stream back, from any thread.
    pub fn waker(&mut self) -> Waker {
        // SAFETY: as in `header`. It is deleted when it is dropped.
        Waker(unsafe { (callbacks().http_filter_scheduler_new)(self.envoy) })
    }
}

/// Where a value in metadata is, in Envoy's terms.
fn place(of: &Metadata) -> (u32, Text, Text) {
    let source = match of.source {
        MetadataSource::Dynamic => 0,
        MetadataSource::Route => 1,
    };
    (source, Text::of(of.namespace.as_bytes()), Text::of(of.key.as_bytes()))
}

/// The namespace of dynamic metadata.
const NAMESPACE: &str = "tidegate";

/// Calls a stream back on its worker.
pub struct Waker(Pointer);

// SAFETY: abi.h says that it may be used from any thread.
unsafe impl Send for Waker {}

impl Waker {
    /// Makes Envoy call `on_scheduled` of the stream.
    pub fn wake(&self) {
        // SAFETY: it is not deleted yet.
        unsafe { (callbacks().http_filter_scheduler_commit)(self.0, 0) }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { (callbacks().http_filter_scheduler_delete)(self.0) }
    }
}

/// A counter of Envoy's.
#[derive(Clone, Copy, Debug)]
pub struct Counter(usize);

/// A gauge of Envoy's.
#[derive(Clone, Copy, Debug)]
pub struct Gauge(usize);

/// Calls a configuration back on Envoy's main thread.
pub struct Bell(Pointer);

// SAFETY: abi.h says that it may be used from any thread.
unsafe impl Send for Bell {}

impl Bell {
    /// Makes Envoy call `on_config_scheduled`.
    pub fn ring(&self) {
        // SAFETY: it is not deleted yet.
        unsafe { (callbacks().http_filter_config_scheduler_commit)(self.0, 0) }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        unsafe { (callbacks().http_filter_config_scheduler_delete)(self.0) }
    }
}

/// A configuration, on Envoy's main thread.
pub struct Host(Pointer);

impl Host {
    /// # Safety
    /// `envoy` is the configuration that Envoy passed to a hook. The value must not be used after that hook returns.
    pub unsafe fn of(envoy: Pointer) -> Self {
        Self(envoy)
    }

    /// Defines a counter with these labels.
    /// Fails when Envoy refuses it.
    pub fn counter(&self, name: &str, labels: &[&str]) -> Result<Counter, String> {
        self.define(callbacks().http_filter_config_define_counter, name, labels).map(Counter)
    }

    /// Defines a gauge with these labels.
    /// Fails when Envoy refuses it.
    pub fn gauge(&self, name: &str, labels: &[&str]) -> Result<Gauge, String> {
        self.define(callbacks().http_filter_config_define_gauge, name, labels).map(Gauge)
    }

    fn define(&self, define: Define, name: &str, labels: &[&str]) -> Result<usize, String> {
        let mut labels = texts(labels.iter().copied());
        let mut id = 0;
        // SAFETY: the configuration is Envoy's, and it copies all texts.
        let refused = unsafe {
            define(self.0, Text::of(name.as_bytes()), labels.as_mut_ptr(), labels.len(), &raw mut id)
        };
        if refused == 0 { Ok(id) } else { Err(format!("Envoy does not take the statistic {name}")) }
    }

    /// Adds to the counter with these values of its labels.
    pub fn add<'v>(&self, Counter(id): Counter, values: impl Iterator<Item = &'v str>, amount: u64) {
        let mut values = texts(values);
        // SAFETY: the configuration has defined it, and Envoy copies the texts.
        unsafe {
            let add = callbacks().http_filter_config_increment_counter;
            add(self.0, id, values.as_mut_ptr(), values.len(), amount);
        }
    }

    /// Sets the gauge with these values of its labels.
    pub fn set<'v>(&self, Gauge(id): Gauge, values: impl Iterator<Item = &'v str>, value: u64) {
        let mut values = texts(values);
        // SAFETY: as in `add`.
        unsafe {
            let set = callbacks().http_filter_config_set_gauge;
            set(self.0, id, values.as_mut_ptr(), values.len(), value);
        }
    }

    /// Calls the configuration back, from any thread.
    pub fn bell(&self) -> Bell {
        // SAFETY: the configuration is Envoy's. It is deleted when it is dropped.
        Bell(unsafe { (callbacks().http_filter_config_scheduler_new)(self.0) })
    }
}

/// Defines a statistic.
type Define = unsafe extern "C" fn(Pointer, Text, *mut Text, usize, *mut usize) -> u32;

fn texts<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<Text> {
    texts.map(|text| Text::of(text.as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an Envoy that is too old, or a build of its own.
    #[test]
    fn a_callback_that_is_missing_is_named() {
        let all_but = |missing: &'static CStr| {
            // Nothing calls them.
            Callbacks::look_up(|name| (name != missing).then(NonNull::dangling))
        };
        assert!(all_but(c"").is_ok());
        for missing in [
            c"envoy_dynamic_module_callback_log",
            c"envoy_dynamic_module_callback_http_add_custom_flag",
            c"envoy_dynamic_module_callback_get_most_specific_route_config",
        ] {
            let said = all_but(missing).err().map(|missing| missing.to_string());
            let name = missing.to_str().expect("ASCII");
            assert_eq!(said, Some(format!("this Envoy has no {name} (expected Envoy 1.39 or 1.40)")));
        }
    }
}
