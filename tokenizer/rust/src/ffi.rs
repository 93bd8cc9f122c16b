//! The C ABI of `tokenizer/c_api.h`; change both together.
//!
//! For every function here: pointers come with their sizes, may be null where the size is 0, and
//! stay valid and unchanged for the length of the call; outputs are writable; a handle is one that
//! `sf_tokenizer_load` returned and that was not destroyed.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;
use std::slice;

use crate::error::{Code, Error, Result};
use crate::text::{utf8, TextTokenizer};

#[repr(C)]
pub struct SfBytes {
    data: *mut u8,
    size: usize,
}

#[repr(C)]
pub struct SfIds {
    data: *mut i32,
    size: usize,
}

impl From<Vec<u8>> for SfBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let (data, size) = into_raw(bytes);
        Self { data, size }
    }
}

impl From<Vec<i32>> for SfIds {
    fn from(ids: Vec<i32>) -> Self {
        let (data, size) = into_raw(ids);
        Self { data, size }
    }
}

fn into_raw<T>(values: Vec<T>) -> (*mut T, usize) {
    let values = values.into_boxed_slice();
    let size = values.len();
    (Box::into_raw(values).cast(), size)
}

/// # Safety
/// `data` and `size` come from `into_raw` and are freed once.
unsafe fn free_raw<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(data, size)));
    }
}

/// # Safety
/// As said at the top of this file.
pub(crate) unsafe fn view<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    }
}

/// # Safety
/// As said at the top of this file; nothing else reads or writes the memory.
pub(crate) unsafe fn view_mut<'a, T>(data: *mut T, size: usize) -> &'a mut [T] {
    if size == 0 {
        &mut []
    } else {
        slice::from_raw_parts_mut(data, size)
    }
}

/// Runs `body`, turning a panic into an error: unwinding into C++ is undefined.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(Error::new(
            Code::Internal,
            format!("panic in the tokenizer: {}", panic_message(panic.as_ref())),
        ))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    if let Some(message) = panic.downcast_ref::<&str>() {
        message
    } else if let Some(message) = panic.downcast_ref::<String>() {
        message
    } else {
        "no message"
    }
}

/// Writes the result, or the message of the error, to `out` and returns the code.
///
/// # Safety
/// `out` is writable.
pub(crate) unsafe fn write_bytes(result: Result<Vec<u8>>, out: *mut SfBytes) -> i32 {
    let (code, bytes) = match result {
        Ok(bytes) => (0, bytes),
        Err(error) => (error.code as i32, error.message.into_bytes()),
    };
    out.write(bytes.into());
    code
}

/// # Safety
/// As said at the top of this file.
pub(crate) unsafe fn write_handle<T>(
    result: Result<T>,
    out: *mut *mut T,
    error: *mut SfBytes,
) -> i32 {
    let (handle, result) = match result {
        Ok(made) => (Box::into_raw(Box::new(made)), Ok(Vec::new())),
        Err(error) => (ptr::null_mut(), Err(error)),
    };
    out.write(handle);
    write_bytes(result, error)
}

/// # Safety
/// As said at the top of this file.
pub(crate) unsafe fn drop_handle<T>(handle: *mut T) {
    if !handle.is_null() {
        drop(Box::from_raw(handle));
    }
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_load(
    dir: *const u8,
    dir_size: usize,
    out: *mut *mut TextTokenizer,
    error: *mut SfBytes,
) -> i32 {
    let result = guarded(|| {
        let dir = utf8("model folder", view(dir, dir_size))?;
        TextTokenizer::load(Path::new(dir))
    });
    write_handle(result, out, error)
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs or follows.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_destroy(tokenizer: *mut TextTokenizer) {
    drop_handle(tokenizer);
}

/// # Safety
/// `bytes` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_free_bytes(bytes: SfBytes) {
    free_raw(bytes.data, bytes.size);
}

/// # Safety
/// `ids` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_free_ids(ids: SfIds) {
    free_raw(ids.data, ids.size);
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    text: *const u8,
    text_size: usize,
    add_special_tokens: bool,
    ids: *mut SfIds,
    error: *mut SfBytes,
) -> i32 {
    let text = view(text, text_size);
    let (encoded, result) = match guarded(|| (*tokenizer).encode(text, add_special_tokens)) {
        Ok(encoded) => (encoded, Ok(Vec::new())),
        Err(error) => (Vec::new(), Err(error)),
    };
    ids.write(encoded.into());
    write_bytes(result, error)
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_decode(
    tokenizer: *const TextTokenizer,
    ids: *const i32,
    ids_size: usize,
    skip_special_tokens: bool,
    text: *mut SfBytes,
) -> i32 {
    let ids = view(ids, ids_size);
    let result = guarded(|| (*tokenizer).decode(ids, skip_special_tokens));
    write_bytes(result.map(String::into_bytes), text)
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_token_bytes(
    tokenizer: *const TextTokenizer,
    id: i32,
    bytes: *mut SfBytes,
) -> i32 {
    write_bytes(guarded(|| (*tokenizer).token_bytes(id)), bytes)
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_apply_chat_template(
    tokenizer: *const TextTokenizer,
    messages: *const u8,
    messages_size: usize,
    tools: *const u8,
    tools_size: usize,
    variables: *const u8,
    variables_size: usize,
    add_generation_prompt: bool,
    text: *mut SfBytes,
) -> i32 {
    let result = guarded(|| {
        (*tokenizer).chat_template().render(
            utf8("messages", view(messages, messages_size))?,
            utf8("tools", view(tools, tools_size))?,
            utf8("template variables", view(variables, variables_size))?,
            add_generation_prompt,
        )
    });
    write_bytes(result.map(String::into_bytes), text)
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_token_flags(tokenizer: *const TextTokenizer, id: i32) -> u32 {
    (*tokenizer).token_flags(id).into()
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_decoder_kind(tokenizer: *const TextTokenizer) -> i32 {
    (*tokenizer).decoder_kind() as i32
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_vocab_size(tokenizer: *const TextTokenizer) -> i32 {
    (*tokenizer).vocab_size() as i32
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_bos_id(tokenizer: *const TextTokenizer) -> i32 {
    (*tokenizer).bos_id().map_or(-1, |id| id as i32)
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_has_chat_template(tokenizer: *const TextTokenizer) -> bool {
    (*tokenizer).chat_template().exists()
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_tool_template(
    tokenizer: *const TextTokenizer,
    text: *mut SfBytes,
) {
    let source = (*tokenizer).chat_template().tool_source();
    text.write(source.as_bytes().to_vec().into());
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_tokenizer_eos_ids(tokenizer: *const TextTokenizer, ids: *mut SfIds) {
    let eos_ids: Vec<i32> = (*tokenizer).eos_ids().iter().map(|&id| id as i32).collect();
    ids.write(eos_ids.into());
}
