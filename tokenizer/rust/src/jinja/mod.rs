//! Chat templates in Transformers' dialect of Jinja: MiniJinja's parser and virtual machine, with
//! Python's operators, methods, strings and JSON.

mod calls;
mod filters;
mod format;
mod format_spec;
mod lower;
mod methods;
mod numbers;
mod objects;
mod operators;
mod text_filters;
mod text_methods;
mod text_search;
mod unicode;
mod values;

use std::collections::BTreeMap;

use minijinja::machinery::{eval, make_string_output, parse, CodeGenerator, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Output, State, Value};
use regex::Regex;
use self_cell::self_cell;

use lower::Lowering;

pub use calls::{add_filter, Args};
pub use objects::is_dict;
pub use operators::OutOfWork;
pub use values::{float, invalid, pairs, type_name, MAX_DEPTH};

/// The template's name in error messages.
const NAME: &str = "template";

pub fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(write_value);
    operators::register(&mut environment);
    objects::register(&mut environment);
    filters::register(&mut environment);
    numbers::register(&mut environment);
    text_filters::register(&mut environment);
    environment
}

fn write_value(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let escapes = !matches!(state.auto_escape(), AutoEscape::None) && !value.is_safe();
    match value.as_str() {
        Some(text) if !escapes => out.write_str(text)?,
        _ => {
            let text = values::to_text(value)?;
            let text = if escapes {
                operators::html_escape(&text)
            } else {
                text
            };
            out.write_str(&text)?;
        }
    }
    Ok(())
}

struct Compiled<'source> {
    instructions: Instructions<'source>,
    blocks: BTreeMap<&'source str, Instructions<'source>>,
}

self_cell! {
    struct SourceAndCompiled {
        owner: String,
        #[covariant]
        dependent: Compiled,
    }
}

/// A template ready to be rendered.
pub struct Program {
    compiled: SourceAndCompiled,
    tests_content_for_none: bool,
}

impl Program {
    pub fn compile(source: &str) -> Result<Self, Error> {
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?;
        let mut lowering = Lowering::default();
        let compiled = SourceAndCompiled::try_new(normalized(source), |source| {
            let parsed = parse(source, NAME, syntax)?;
            let mut generator = CodeGenerator::new(NAME, source);
            generator.compile_stmt(&lowering.stmt(&parsed));
            let (instructions, blocks) = generator.finish();
            Ok::<_, Error>(Compiled {
                instructions,
                blocks,
            })
        })?;
        Ok(Self {
            compiled,
            tests_content_for_none: lowering.tests_content_for_none,
        })
    }

    /// Whether an `if` of the template tests if a message's content is none.
    pub fn tests_content_for_none(&self) -> bool {
        self.tests_content_for_none
    }

    pub fn render(&self, environment: &Environment, variables: Value) -> Result<String, Error> {
        let compiled = self.compiled.borrow_dependent();
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        eval(
            environment,
            &compiled.instructions,
            variables,
            &compiled.blocks,
            &mut out,
            AutoEscape::None,
        )?;
        drop(out);
        Ok(text)
    }
}

/// The source as Jinja's lexer sees it, with tags that MiniJinja does not know replaced.
fn normalized(source: &str) -> String {
    // Jinja converts all line ends to "\n", also within strings and raw blocks.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    // `{% generation %}` marks the assistant's text for training masks and prints nothing. It is
    // replaced by an `if` that is always true, which has the same effect on white space around it.
    let opening = pattern(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})");
    let closing = pattern(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})");
    // Jinja keeps the line end after `{% raw %}`, but MiniJinja removes it as after other tags.
    let raw = pattern(r"(\{%[-+]?\s*raw\s*%\})\n");
    let source = opening.replace_all(&source, "${1}if true${2}");
    let source = closing.replace_all(&source, "${1}endif${2}");
    raw.replace_all(&source, "${1}\n\n").into_owned()
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("constant pattern")
}

/// The values that become JSON arrays: lists and tuples, and MiniJinja's equivalents of lists.
pub fn is_list(value: &Value) -> bool {
    values::is_list_like(value)
        && objects::view_name(value).is_none()
        && !objects::prints_itself(value)
}
