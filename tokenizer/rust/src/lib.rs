//! Hugging Face tokenizers and chat templates behind the C ABI of `tokenizer/c_api.h`.
//!
//! `checkpoint` reads a model folder, `text` encodes and decodes, `chat_template` renders
//! conversations, and `ffi` is the only module with unsafe code besides one call of strftime.

mod chat_template;
mod checkpoint;
mod error;
mod ffi;
mod python_json;
mod text;
