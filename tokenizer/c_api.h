#ifndef SPECFABRIC_TOKENIZER_C_API_H_
#define SPECFABRIC_TOKENIZER_C_API_H_

// The C ABI of the Rust library in tokenizer/rust. rust/src/ffi.rs implements it: change both
// together. Only tokenizer.cc uses it; other code includes tokenizer/tokenizer.h.
//
// Every call that can fail returns 0 or an absl::StatusCode. On failure the bytes output holds the
// message in UTF-8 instead of the result. Outputs are written on every return; the caller frees
// them with the matching sf_tokenizer_free_* function. A Rust panic becomes code 13 (internal).
// Calls on one handle may run concurrently, except destroy, and except those on a matcher.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SfTokenizer SfTokenizer;
typedef struct SfGrammars SfGrammars;  // compiles grammars for one vocabulary
typedef struct SfMatcher SfMatcher;    // where a text is in its grammar

typedef struct {
  uint8_t* data;
  size_t size;
} SfBytes;

typedef struct {
  int32_t* data;
  size_t size;
} SfIds;

// Bits that sf_tokenizer_token_flags returns.
enum {
  kSfTokenKnown = 1,    // in the vocabulary
  kSfTokenSpecial = 2,  // skipped by decode(skip_special_tokens)
  kSfTokenByte = 4,     // a byte-fallback token, "<0xNN>"
};

// How much of the text of a prefix is final after it was decoded; see incremental_decoder.h.
enum {
  kSfDecoderPerToken = 0,
  kSfDecoderByteLevel = 1,
  kSfDecoderByteFallback = 2,
  kSfDecoderWhole = 3,
};

int32_t sf_tokenizer_load(const char* dir, size_t dir_size, SfTokenizer** out, SfBytes* error);
void sf_tokenizer_destroy(SfTokenizer* tokenizer);
void sf_tokenizer_free_bytes(SfBytes bytes);
void sf_tokenizer_free_ids(SfIds ids);

int32_t sf_tokenizer_encode(const SfTokenizer* tokenizer, const char* text, size_t text_size,
                            bool add_special_tokens, SfIds* ids, SfBytes* error);
int32_t sf_tokenizer_decode(const SfTokenizer* tokenizer, const int32_t* ids, size_t ids_size,
                            bool skip_special_tokens, SfBytes* text);
int32_t sf_tokenizer_token_bytes(const SfTokenizer* tokenizer, int32_t id, SfBytes* bytes);

// tools and variables are JSON texts, or of size 0 for none.
int32_t sf_tokenizer_apply_chat_template(const SfTokenizer* tokenizer, const char* messages,
                                         size_t messages_size, const char* tools, size_t tools_size,
                                         const char* variables, size_t variables_size,
                                         bool add_generation_prompt, SfBytes* text);

uint32_t sf_tokenizer_token_flags(const SfTokenizer* tokenizer, int32_t id);  // 0: unknown id
int32_t sf_tokenizer_decoder_kind(const SfTokenizer* tokenizer);
int32_t sf_tokenizer_vocab_size(const SfTokenizer* tokenizer);
int32_t sf_tokenizer_bos_id(const SfTokenizer* tokenizer);  // -1: none
bool sf_tokenizer_has_chat_template(const SfTokenizer* tokenizer);
// The text of the chat template for conversations with tools; empty: there is none.
void sf_tokenizer_tool_template(const SfTokenizer* tokenizer, SfBytes* text);
void sf_tokenizer_eos_ids(const SfTokenizer* tokenizer, SfIds* ids);

// Lives on without the tokenizer. FailedPrecondition (9): the tokenizer has no end token.
int32_t sf_grammars_create(const SfTokenizer* tokenizer, SfGrammars** out, SfBytes* error);
void sf_grammars_destroy(SfGrammars* grammars);
// language: base::GrammarLanguage.
int32_t sf_grammars_compile(const SfGrammars* grammars, int32_t language, const char* source,
                            size_t source_size, SfMatcher** out, SfBytes* error);

SfMatcher* sf_matcher_clone(const SfMatcher* matcher);  // null after an internal error
void sf_matcher_destroy(SfMatcher* matcher);
int32_t sf_matcher_consume(SfMatcher* matcher, const int32_t* ids, size_t ids_size, SfBytes* error);
int32_t sf_matcher_rollback(SfMatcher* matcher, size_t count, SfBytes* error);
size_t sf_matcher_allowed(SfMatcher* matcher, const int32_t* ids, size_t ids_size);
int32_t sf_matcher_mask(SfMatcher* matcher, uint32_t* words, size_t words_size, SfBytes* error);
void sf_matcher_forced(SfMatcher* matcher, SfIds* ids);
bool sf_matcher_accepts(SfMatcher* matcher);
bool sf_matcher_stopped(const SfMatcher* matcher);

#ifdef __cplusplus
}
#endif

#endif  // SPECFABRIC_TOKENIZER_C_API_H_
