//! Hugging Face tokenizers and chat templates behind the C ABI of `tokenizer/c_api.h`.
//!
//! `checkpoint` reads a model folder, `text` encodes and decodes, `chat_template` renders
//! conversations with `jinja` and the functions of `chat_builtins`. Unsafe code is in `ffi` and in
//! the call of strftime.

mod chat_builtins;
mod chat_template;
mod checkpoint;
mod conversation;
mod error;
mod ffi;
mod jinja;
mod python_json;
mod text;
