//! Renders conversations with a checkpoint's chat template, as `apply_chat_template` of Hugging
//! Face Transformers does.

use std::collections::BTreeMap;
use std::error::Error as StdError;

use minijinja::value::{Serde, Value};
use minijinja::Environment;
use serde_json::{Map, Value as Json};

use crate::chat_builtins::{self, Raised};
use crate::checkpoint::ChatTemplates;
use crate::conversation::{self, Wishes};
use crate::error::{Code, Error, Result};
use crate::jinja::{OutOfWork, Program};

const DEFAULT_TEMPLATE: &str = "default";
const TOOL_TEMPLATE: &str = "tool_use";

pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<String, String>,
    /// By name. For a template that does not compile the error is kept: completions work without
    /// it.
    programs: BTreeMap<String, std::result::Result<Program, String>>,
    sources: ChatTemplates,
}

impl ChatTemplate {
    pub fn new(templates: &ChatTemplates, special_tokens: BTreeMap<String, String>) -> Self {
        let compile = |source| Program::compile(source).map_err(|error| error_line(&error));
        Self {
            environment: chat_builtins::environment(),
            special_tokens,
            programs: templates
                .iter()
                .map(|(name, source)| (name.clone(), compile(source)))
                .collect(),
            sources: templates.clone(),
        }
    }

    /// Whether there is a template for conversations without tools.
    pub fn exists(&self) -> bool {
        self.programs.contains_key(DEFAULT_TEMPLATE)
    }

    /// The text of the template for conversations with tools; empty if there is none.
    pub fn tool_source(&self) -> &str {
        [TOOL_TEMPLATE, DEFAULT_TEMPLATE]
            .iter()
            .find_map(|name| self.sources.get(*name))
            .map_or("", String::as_str)
    }

    /// `tools` and `variables` are JSON texts or empty; `variables` is an object whose members the
    /// template sees by name.
    pub fn render(
        &self,
        messages: &str,
        tools: &str,
        variables: &str,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let tools = optional("tools", "an array", tools, Json::is_array)?;
        let variables = optional(
            "template variables",
            "an object",
            variables,
            Json::is_object,
        )?;
        let program = self.program(!tools.is_null());
        let wishes = Wishes {
            none_for_no_content: program.as_ref().is_ok_and(|p| p.tests_content_for_none()),
            arguments_as_text: false,
        };
        let conversation = conversation::messages(messages, wishes)?;
        let program = program?;

        let mut context = self.context(variables, tools, add_generation_prompt);
        context.insert("messages".to_string(), conversation);
        let failure = match self.run(program, &context) {
            Ok(text) => return Ok(text),
            Err(failure) => failure,
        };
        let error = Error::invalid(render_message(&failure));
        if causes(&failure).any(|cause| cause.is::<OutOfWork>()) {
            return Err(error);
        }
        // Some templates expect the arguments of tool calls to be strings and fail on objects.
        let wishes = Wishes {
            arguments_as_text: true,
            ..wishes
        };
        let as_text = conversation::messages(messages, wishes)?;
        if context.get("messages") == Some(&as_text) {
            return Err(error);
        }
        context.insert("messages".to_string(), as_text);
        self.run(program, &context).map_err(|_| error)
    }

    fn context(
        &self,
        variables: Json,
        tools: Json,
        add_generation_prompt: bool,
    ) -> Map<String, Json> {
        let mut context = Map::new();
        for (key, token) in &self.special_tokens {
            context.insert(key.clone(), token.clone().into());
        }
        if let Json::Object(variables) = variables {
            context.extend(variables);
        }
        context.insert("tools".to_string(), tools);
        context.entry("documents").or_insert(Json::Null);
        let prompt = "add_generation_prompt".to_string();
        context.insert(prompt, add_generation_prompt.into());
        context
    }

    fn run(
        &self,
        program: &Program,
        context: &Map<String, Json>,
    ) -> std::result::Result<String, minijinja::Error> {
        program.render(&self.environment, Value::from(Serde(context)))
    }

    fn program(&self, with_tools: bool) -> Result<&Program> {
        let for_tools = self.programs.get(TOOL_TEMPLATE).filter(|_| with_tools);
        match for_tools.or_else(|| self.programs.get(DEFAULT_TEMPLATE)) {
            Some(Ok(program)) => Ok(program),
            Some(Err(reason)) => Err(Error::new(
                Code::FailedPrecondition,
                format!("the model's chat template does not compile: {reason}"),
            )),
            None => Err(Error::invalid(
                "the model has no chat template; only plain completions are possible",
            )),
        }
    }
}

fn optional(what: &str, kind: &str, text: &str, is_kind: impl Fn(&Json) -> bool) -> Result<Json> {
    if text.is_empty() {
        return Ok(Json::Null);
    }
    let json = conversation::parse(what, text)?;
    if !json.is_null() && !is_kind(&json) {
        return Err(Error::invalid(format!("{what}: must be {kind} in JSON")));
    }
    Ok(json)
}

fn causes(error: &minijinja::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// The error and its causes, in one line.
fn error_line(error: &minijinja::Error) -> String {
    let mut line = error.to_string();
    for cause in causes(error).filter(|cause| !cause.is::<OutOfWork>()) {
        line.push_str(&format!(": {cause}"));
    }
    line.replace('\n', " ")
}

/// One line for the client: the message that the template raised, or else the error in it.
fn render_message(error: &minijinja::Error) -> String {
    match causes(error).find_map(|cause| cause.downcast_ref::<Raised>()) {
        Some(Raised(message)) => format!("the chat template refused the messages: {message}"),
        None => format!("the chat template failed: {}", error_line(error)),
    }
}
