//! Hugging Face tokenizers, chat templates and grammars behind the C ABI of `tokenizer/c_api.h`.
//!
//! `checkpoint` reads a model folder, `text` encodes and decodes, `chat_template` renders
//! conversations with `jinja` and the functions of `chat_builtins`, `grammar` says which tokens may
//! follow. Unsafe code is in `ffi`, `ffi_grammar` and in the call of strftime.

mod chat_builtins;
mod chat_template;
mod checkpoint;
mod conversation;
mod error;
mod ffi;
mod ffi_grammar;
mod grammar;
mod jinja;
mod python_json;
mod text;
