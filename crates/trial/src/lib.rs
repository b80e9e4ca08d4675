//! Rules tried offline, before anybody is denied: on access logs, in cases, and on what Envoy would ask. `replay` and
//! `cases` decide through the engine itself, at times that they are given.
//!
//! ```text
//! log ─▶ input ─▶ lines ─▶ format ─LogLine─▶ map ──Request──▶ plan ─▶ order ─▶ decide ─▶ tally ─▶ Report ─▶ text, JSON, HTML
//!       (gz, zstd) (bounded) (compiled once)                         (by time)  (the engine)       └──▶ conditions of CI
//!
//! cases (YAML) ─▶ steps, each at a time ─▶ decide ─▶ failures ─▶ text, JUnit, JSON, annotations
//! ```
//!
//! - **[`replay`]** reads what a proxy logged. A format and a map are compiled once; a line is then a few searches for
//!   bytes, without an allocation. A line is planned when it is read, because its text is gone afterwards. It is decided
//!   when no earlier line can follow any more: the steps of its plan wait in `order`, by their stamps. So the virtual
//!   clock never goes back. All of it is bounded: bytes of a line, lines that wait, keys with numbers of their own.
//!   Beyond that many keys the numbers are those of a sample of the keys, chosen by their hashes, and the report says so.
//! - **`replay/suggest`** reads a log several times instead of keeping it: for its span, for the peaks of keys, for what a
//!   limit denies. A peak is what the engine counts under a limit that nothing reaches. Limits are written into the text
//!   of a rule file, also into one that is made from the map, so that all else in it stays.
//! - **[`cases`]** reads requests with the answers that are expected of them. Each case starts with unused counters.
//! - **[`envoy`]** makes the descriptors that Envoy would make of a request, from its configuration alone.
//!
//! All know no settings, no sockets and no clock. The commands of the program `tidegate` (`src/cli`) parse arguments and
//! print what these return. The items are for them, and change with them.

pub mod replay;
pub mod cases;
pub mod envoy;
