// SPDX-License-Identifier: Apache-2.0
//! Handle over one tokenizers::Tokenizer, set up the way Transformers sets up the same file.

use crate::border::{catch, guard, Bytes, Ids, View};
use serde_json::Value as Json;
use std::collections::HashSet;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

const KNOWN: u32 = 1;
const SPECIAL: u32 = 2;
const BYTE: u32 = 4;

/// Adds the tokens of tokenizer_config.json that tokenizer.json does not list among its added tokens.
fn add_tokens(tokenizer: &mut Tokenizer, tokens: &Json) -> Result<(), String> {
    let tokens: Vec<AddedToken> = serde_json::from_value(tokens.clone()).map_err(|e| format!("added tokens: {e}"))?;
    let mut present: HashSet<String> = tokenizer.get_added_tokens_decoder().into_values().map(|t| t.content).collect();
    let missing: Vec<AddedToken> = tokens.into_iter().filter(|t| present.insert(t.content.clone())).collect();
    tokenizer.add_tokens(missing).map_err(|e| format!("added tokens: {e}"))?;
    Ok(())
}

/// The post-processor "bos text eos", which add_bos_token and add_eos_token of tokenizer_config.json ask for.
fn set_template(tokenizer: &mut Tokenizer, template: &Json) -> Result<(), String> {
    let mut pieces = vec!["$A:0".to_string()];
    let mut special = Vec::new();
    for (key, front) in [("bos", true), ("eos", false)] {
        let Some(token) = template.get(key).and_then(Json::as_str) else { continue };
        let id =
            tokenizer.token_to_id(token).ok_or_else(|| format!("{key} token {token:?} is not in the vocabulary"))?;
        special.push((token.to_string(), id));
        pieces.insert(if front { 0 } else { pieces.len() }, format!("{token}:0"));
    }
    let processor = TemplateProcessing::builder()
        .try_single(pieces)
        .and_then(|b| Ok(b.special_tokens(special).build().map_err(|e| e.to_string())?))
        .map_err(|e| format!("post-processor: {e}"))?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}

fn load(json: &[u8], settings: &[u8]) -> Result<Tokenizer, String> {
    let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
    if !settings.is_empty() {
        let settings: Json = serde_json::from_slice(settings).map_err(|e| format!("settings: {e}"))?;
        if let Some(tokens) = settings.get("added_tokens") {
            add_tokens(&mut tokenizer, tokens)?;
        }
        if let Some(template) = settings.get("template") {
            set_template(&mut tokenizer, template)?;
        }
    }
    Ok(tokenizer)
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_load(
    json: View,
    settings: View,
    out: *mut *mut Tokenizer,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || Ok(Box::into_raw(Box::new(load(json.bytes(), settings.bytes())?))))
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_vocab_size(tokenizer: *const Tokenizer) -> usize {
    catch(|| Ok((*tokenizer).get_vocab_size(true))).unwrap_or(0)
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: View,
    add_special: i32,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let encoding = (*tokenizer).encode_fast(text.text()?, add_special != 0).map_err(|e| e.to_string())?;
        Ok(Ids::new(encoding.get_ids().to_vec()))
    })
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_decode(
    tokenizer: *const Tokenizer,
    ids: *const u32,
    n: usize,
    skip_special: i32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let ids = if n == 0 { &[] } else { std::slice::from_raw_parts(ids, n) };
        let text = (*tokenizer).decode(ids, skip_special != 0).map_err(|e| e.to_string())?;
        Ok(Bytes::new(text.into_bytes()))
    })
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_token_to_id(tokenizer: *const Tokenizer, token: View) -> i64 {
    catch(|| Ok((*tokenizer).token_to_id(token.text()?))).ok().flatten().map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_id_to_token(
    tokenizer: *const Tokenizer,
    id: u32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let token = (*tokenizer).id_to_token(id).ok_or_else(|| format!("id {id} is not in the vocabulary"))?;
        Ok(Bytes::new(token.into_bytes()))
    })
}

/// The spelling the byte-fallback decoder recognises.
fn is_byte_token(token: &str) -> bool {
    token.len() == 6
        && token.starts_with("<0x")
        && token.ends_with('>')
        && token.get(3..5).is_some_and(|hex| u8::from_str_radix(hex, 16).is_ok())
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_tokenizer_token_flags(tokenizer: *const Tokenizer, id: u32) -> u32 {
    catch(|| {
        let Some(token) = (*tokenizer).id_to_token(id) else { return Ok(0) };
        let special = (*tokenizer).get_added_vocabulary().is_special_token(&token);
        Ok(KNOWN + if special { SPECIAL } else { 0 } + if is_byte_token(&token) { BYTE } else { 0 })
    })
    .unwrap_or(0)
}
