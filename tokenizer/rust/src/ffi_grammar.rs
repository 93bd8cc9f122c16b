//! The part of the C ABI about grammars; what the top of `ffi.rs` says holds here, too.

use std::ptr;

use crate::ffi::{drop_handle, guarded, view, view_mut, write_bytes, write_handle, SfBytes, SfIds};
use crate::grammar::{GrammarMatcher, Grammars, Language};
use crate::text::{utf8, TextTokenizer};

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_grammars_create(
    tokenizer: *const TextTokenizer,
    out: *mut *mut Grammars,
    error: *mut SfBytes,
) -> i32 {
    write_handle(guarded(|| Grammars::new(&*tokenizer)), out, error)
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs or follows.
#[no_mangle]
pub unsafe extern "C" fn sf_grammars_destroy(grammars: *mut Grammars) {
    drop_handle(grammars);
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_grammars_compile(
    grammars: *const Grammars,
    language: i32,
    source: *const u8,
    source_size: usize,
    out: *mut *mut GrammarMatcher,
    error: *mut SfBytes,
) -> i32 {
    let compiled = guarded(|| {
        let source = utf8("grammar", view(source, source_size))?;
        (*grammars).compile(Language::try_from(language)?, source)
    });
    write_handle(compiled, out, error)
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_clone(matcher: *const GrammarMatcher) -> *mut GrammarMatcher {
    match guarded(|| Ok((*matcher).clone())) {
        Ok(clone) => Box::into_raw(Box::new(clone)),
        Err(_) => ptr::null_mut(),
    }
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs or follows.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_destroy(matcher: *mut GrammarMatcher) {
    drop_handle(matcher);
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_consume(
    matcher: *mut GrammarMatcher,
    ids: *const i32,
    ids_size: usize,
    error: *mut SfBytes,
) -> i32 {
    let consumed = guarded(|| (*matcher).consume(view(ids, ids_size)));
    write_bytes(consumed.map(|()| Vec::new()), error)
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_rollback(
    matcher: *mut GrammarMatcher,
    count: usize,
    error: *mut SfBytes,
) -> i32 {
    let result = guarded(|| (*matcher).rollback(count));
    write_bytes(result.map(|()| Vec::new()), error)
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_allowed(
    matcher: *mut GrammarMatcher,
    ids: *const i32,
    ids_size: usize,
) -> usize {
    guarded(|| (*matcher).allowed(view(ids, ids_size))).unwrap_or(0)
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_mask(
    matcher: *mut GrammarMatcher,
    words: *mut u32,
    words_size: usize,
    error: *mut SfBytes,
) -> i32 {
    let result = guarded(|| (*matcher).mask(view_mut(words, words_size)));
    write_bytes(result.map(|()| Vec::new()), error)
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_forced(matcher: *mut GrammarMatcher, ids: *mut SfIds) {
    let forced = guarded(|| Ok((*matcher).forced())).unwrap_or_default();
    ids.write(forced.into());
}

/// # Safety
/// As said at the top of this file; no other call on the handle runs.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_accepts(matcher: *mut GrammarMatcher) -> bool {
    guarded(|| Ok((*matcher).accepts())).unwrap_or(false)
}

/// # Safety
/// As said at the top of this file.
#[no_mangle]
pub unsafe extern "C" fn sf_matcher_stopped(matcher: *const GrammarMatcher) -> bool {
    guarded(|| Ok((*matcher).stopped())).unwrap_or(true)
}
