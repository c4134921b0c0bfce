// SPDX-License-Identifier: Apache-2.0
//! Python's json.dumps as the `tojson` filter of chat templates, with Transformers' defaults (no ASCII escapes, no HTML
//! escapes): same separators, same number format, same errors for what Python cannot serialise.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use std::fmt::Write;

/// Deeper values than this are refused; JSON input never nests deeper (serde_json's own limit).
const MAX_DEPTH: usize = 128;

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
}

fn fail(message: String) -> Error {
    Error::new(ErrorKind::BadSerialization, message)
}

pub fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(fail("tojson: separators must be a pair of strings".into())),
    };
    let style = Style {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.dump(&value, 0, &mut out)?;
    Ok(Value::from(out))
}

impl Style {
    fn dump(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(fail(format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value, out),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(b"[]", &items, depth, out, |item, out| self.dump(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((self.key(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.list(b"{}", &entries, depth, out, |(key, item), out| {
                    self.string(key, out);
                    out.push_str(&self.key_separator);
                    self.dump(item, depth + 1, out)
                })?;
            }
            kind => return Err(fail(format!("tojson: a value of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list<T>(
        &self,
        brackets: &[u8; 2],
        items: &[T],
        depth: usize,
        out: &mut String,
        mut each: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(brackets[0] as char);
        for (i, item) in items.iter().enumerate() {
            if i != 0 {
                out.push_str(&self.item_separator);
            }
            self.new_line(depth + 1, out);
            each(item, out)?;
        }
        if !items.is_empty() {
            self.new_line(depth, out);
        }
        out.push(brackets[1] as char);
        Ok(())
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn key(&self, key: &Value) -> Result<String, Error> {
        let mut text = String::new();
        match key.kind() {
            ValueKind::String => text.push_str(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.dump(key, 0, &mut text)?,
            kind => return Err(fail(format!("tojson: a key of type {kind} is not JSON serializable"))),
        }
        Ok(text)
    }

    fn number(&self, value: &Value, out: &mut String) {
        if value.is_integer() {
            let _ = write!(out, "{value}");
        } else {
            out.push_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && (c as u32) >= 0x7f) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Python's repr of a float: shortest digits, an exponent below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}
