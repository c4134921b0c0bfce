// SPDX-License-Identifier: Apache-2.0
//! Chat templates: minijinja set up like the Jinja environment of Transformers' apply_chat_template, and the work that
//! function does around the rendering (reasoning aliases, continue_final_message).

use crate::border::{guard, Bytes, View};
use crate::python_json::tojson;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value as Json};

const ADD_GENERATION_PROMPT: u32 = 1;
const CONTINUE_FINAL_MESSAGE: u32 = 2;

/// Instructions one rendering may take: about a second. Real templates need a few thousand a message; this ends loops
/// that a broken or hostile template would run for ever.
const FUEL: u64 = 20_000_000;

/// Marks the end of the message to continue; the blank tells whether the template trims.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
}

/// "line 3: text" for the caller, without minijinja's dump of variables.
fn describe(error: &Error) -> String {
    let mut text = error.line().map_or(String::new(), |line| format!("line {line}: "));
    match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => text.push_str("rendering takes too long; does the template loop for ever?"),
        (_, Some(detail)) => text.push_str(detail),
        (kind, None) => text.push_str(&kind.to_string()),
    }
    text
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Python's datetime.now().strftime(format), by the C library as Python does it.
fn strftime_now(format: String) -> Result<String, Error> {
    let invalid = || Error::new(ErrorKind::InvalidOperation, format!("strftime_now: cannot format {format:?}"));
    if format.is_empty() {
        return Ok(format);
    }
    let c_format = std::ffi::CString::new(format.as_str()).map_err(|_| invalid())?;
    let mut buffer = vec![0u8; 256 + 16 * format.len()];
    // SAFETY: every pointer is to a live local of the right type; strftime writes at most buffer.len() bytes.
    let written = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return Err(invalid());
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), c_format.as_ptr(), &parts)
    };
    buffer.truncate(written);
    String::from_utf8(buffer).map_err(|_| invalid())
}

/// `{% generation %} ... {% endgeneration %}` marks the assistant's text for training; it renders its body in a scope of
/// its own, so it becomes `with`, which keeps whitespace control and line numbers.
fn replace_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let tag = &rest[at + 2..];
        let end = tag.find("%}").unwrap_or(tag.len());
        let inner = &tag[..end];
        let word = inner.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        out.push_str(&rest[..at + 2]);
        match word {
            "generation" => out.push_str(&inner.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&inner.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(inner),
        }
        rest = &tag[end..];
    }
    out + rest
}

fn compile(source: &str) -> Result<ChatTemplate, String> {
    let mut env = Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(|e| e.to_string())?);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env.set_fuel(Some(FUEL));
    env.add_template_owned("chat", replace_generation_tags(source)).map_err(|e| describe(&e))?;
    Ok(ChatTemplate { env, source: source.to_string() })
}

/// Gives every message its reasoning under the name that templates read, whichever name the caller used.
fn alias_reasoning(message: Map<String, Json>) -> Map<String, Json> {
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|name| message.get(*name).filter(|value| !value.is_null()).cloned());
    let Some(reasoning) = reasoning else { return message };
    let mut aliased = Map::new();
    aliased.insert("thinking".into(), reasoning.clone());
    aliased.extend(message);
    aliased.insert("reasoning_content".into(), reasoning);
    aliased
}

fn parse_messages(text: &[u8]) -> Result<Vec<Json>, String> {
    let messages: Vec<Json> = serde_json::from_slice(text).map_err(|e| format!("messages: {e}"))?;
    let alias = |(i, message)| match message {
        Json::Object(fields) => Ok(Json::Object(alias_reasoning(fields))),
        _ => Err(format!("messages[{i}] must be an object with role and content")),
    };
    messages.into_iter().enumerate().map(alias).collect()
}

fn parse_object(what: &str, text: &[u8]) -> Result<Map<String, Json>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(text).map_err(|e| format!("{what}: {e}"))
}

/// Appends the tag to the text of the last message, or to its last text block; gives the untagged text.
fn tag_final_message(messages: &mut [Json]) -> Result<String, String> {
    let last = messages.last_mut().ok_or("continue_final_message: there are no messages")?;
    let content = match last.get_mut("content") {
        Some(Json::Array(blocks)) => blocks.iter_mut().rev().find_map(|block| block.get_mut("text")),
        other => other,
    };
    match content {
        Some(Json::String(text)) => {
            let original = text.clone();
            text.push_str(CONTINUE_TAG);
            Ok(original)
        }
        _ => Err("continue_final_message: the last message has no text to continue".into()),
    }
}

/// Ends the rendered chat where the last message ends.
fn cut_at_tag(mut rendered: String, final_message: &str) -> Result<String, String> {
    let tag = rendered.rfind(CONTINUE_TAG.trim_end()).filter(|_| rendered.contains(final_message.trim())).ok_or(
        "continue_final_message: the template does not show the last message unchanged, so it cannot be continued",
    )?;
    let spacing_kept = rendered[tag..].starts_with(CONTINUE_TAG);
    rendered.truncate(if spacing_kept { tag } else { rendered[..tag].trim_end().len() });
    Ok(rendered)
}

impl ChatTemplate {
    fn render(&self, messages: &[u8], special_tokens: &[u8], kwargs: &[u8], flags: u32) -> Result<String, String> {
        let continue_final = flags & CONTINUE_FINAL_MESSAGE != 0;
        if continue_final && flags & ADD_GENERATION_PROMPT != 0 {
            return Err("continue_final_message and add_generation_prompt exclude each other".into());
        }
        let mut messages = parse_messages(messages)?;
        let mut variables = Map::new();
        variables.insert("tools".into(), Json::Null);
        variables.insert("documents".into(), Json::Null);
        variables.extend(parse_object("special tokens", special_tokens)?);
        variables.extend(parse_object("chat template kwargs", kwargs)?);
        variables.insert("add_generation_prompt".into(), Json::Bool(flags & ADD_GENERATION_PROMPT != 0));

        let mut final_message = String::new();
        if continue_final {
            if !self.source.contains("content") {
                return Err("continue_final_message: the template does not read the content of messages".into());
            }
            final_message = tag_final_message(&mut messages)?;
        }
        variables.insert("messages".into(), Json::Array(messages));
        let template = self.env.get_template("chat").map_err(|e| describe(&e))?;
        let rendered = template.render(Value::from(Serde(variables))).map_err(|e| describe(&e))?;
        if continue_final {
            cut_at_tag(rendered, &final_message)
        } else {
            Ok(rendered)
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_template_compile(source: View, out: *mut *mut ChatTemplate, error: *mut Bytes) -> i32 {
    guard(out, error, || Ok(Box::into_raw(Box::new(compile(source.text()?)?))))
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_template_render(
    template: *const ChatTemplate,
    messages: View,
    special_tokens: View,
    kwargs: View,
    flags: u32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let text = (*template).render(messages.bytes(), special_tokens.bytes(), kwargs.bytes(), flags)?;
        Ok(Bytes::new(text.into_bytes()))
    })
}
