// SPDX-License-Identifier: Apache-2.0
//! Hugging Face tokenizers and chat templates behind a C ABI. The contract is kvplug_text.h, written by hand;
//! a test on the C++ side calls every function. `border` keeps panics and ownership in order, `tokenizer` and
//! `template` hold one handle type each, `python_json` is the part of Python that templates can see.

mod border;
mod python_json;
mod template;
mod tokenizer;
