//! The header blocks of a connection: each is read like a naive decoder reads it, also when it comes again, which the
//! decoder of the server may know without reading it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_grpc::hpack::text::{Field, TextDecoder, size};
use tidegate_grpc::hpack::{DecodeError, Decoder, LIST_BYTES_MAX, Served};

static SERVED: Served = Served { calls: &["/call"], dialogs: &["/talk"], kept: &["x-kept"] };

/// The longest value of a field, and the most blocks of a connection.
const VALUE_BYTES_MAX: u8 = 64;
const BLOCKS_MAX: usize = 64;

/// The values of the fields with this name. `None`: one may be no value of a field, which is not checked here.
fn values<'f>(fields: &'f [Field], name: &str) -> Option<Vec<&'f str>> {
    let values = fields.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str());
    let is_plain = |value: &&str| value.bytes().all(|byte| byte.is_ascii_graphic());
    values.clone().all(|value| is_plain(&value)).then(|| values.collect())
}

/// Reads a block with both. Returns whether the connection goes on.
fn agrees(decoder: &mut Decoder, naive: &mut TextDecoder, block: &[u8]) -> bool {
    let (read, fields) = (decoder.decode(block), naive.decode(block));
    let (head, fields) = match (read, fields) {
        (Ok(head), Some(fields)) => (head, fields),
        (Err(DecodeError::TooLarge), fields) => {
            assert!(fields.is_none_or(|fields| size(&fields) > LIST_BYTES_MAX));
            return false;
        }
        (Err(DecodeError::Malformed), None) => return false,
        (read, fields) => panic!("{read:?}, but {fields:?}"),
    };
    assert_eq!(head.size, size(&fields));
    if let Some(kept) = values(&fields, "x-kept") {
        let first = kept.first().map(|value| value.as_bytes());
        assert_eq!(decoder.kept().get("x-kept"), first);
    }
    if let Some(paths) = values(&fields, ":path")
        && head.is_request()
    {
        assert_eq!(paths.len(), 1, "{fields:?}");
        assert_eq!(head.route == tidegate_grpc::Route::Known(0), paths == ["/call"]);
    }
    true
}

/// Blocks of which most are well-formed, so that tables are filled and used: each instruction is a byte, with a number.
fn blocks(instructions: &[u8]) -> Vec<Vec<u8>> {
    let (mut blocks, mut block, mut entered) = (Vec::<Vec<u8>>::new(), Vec::new(), 0);
    for instruction in instructions.chunks_exact(2) {
        let [does, number] = [instruction[0], instruction[1]];
        let value = vec![number | 0x20; usize::from(number % VALUE_BYTES_MAX)];
        let text = [&[number % VALUE_BYTES_MAX], &value[..]].concat();
        match does % 16 {
            // A field of a table, by its index: one that has entered, or one that is always there.
            0..3 => block.push(0x80 | (62 + number % entered.max(1))),
            3 => block.push(0x80 | (1 + number % 61)),
            // One with a name of a table, which enters the table or not.
            4..7 => block.extend([&[0x40 | (1 + number % 61)], &text[..]].concat()),
            8 => block.extend([&[1 + number % 14], &text[..]].concat()),
            // One with another name.
            7 => block.extend([b"\x40\x06x-kept", &text[..]].concat()),
            // Another size of the table.
            9 if number > 127 => block.extend([0x3f, 0xe1, 0x1f]),
            9 => block.extend([0x3f, number]),
            10..13 if blocks.len() < BLOCKS_MAX => blocks.push(std::mem::take(&mut block)),
            // A block that was there before.
            13..15 if (1..BLOCKS_MAX).contains(&blocks.len()) => {
                blocks.push(blocks[usize::from(number) % blocks.len()].clone());
            }
            _ => block.push(number),
        }
        entered = (entered + u8::from(matches!(does % 16, 4..8))).min(8);
    }
    blocks
}

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut naive) = (Decoder::new(&SERVED), TextDecoder::default());
    let _ = blocks(data).iter().all(|block| agrees(&mut decoder, &mut naive, block));
});
