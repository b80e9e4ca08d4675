//! The examples of RFC 7541, appendix C, and malformed blocks.

use super::*;
use crate::fixture::SERVED;
use crate::hpack::field::{Meaning, Method, Route};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte =
        |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits");
    digits.chunks(2).map(byte).collect()
}

fn decode(decoder: &mut Decoder, block: &str) -> RequestHead {
    decoder.decode(&hex(block)).expect("an example of the RFC")
}

/// The size of the dynamic table, and those of its entries.
fn sizes(decoder: &Decoder) -> (usize, Vec<usize>) {
    let entries = (62..).map_while(|index| decoder.table.get(index)).map(|entry| entry.size).collect();
    (decoder.table.size(), entries)
}

#[test]
fn integers_of_the_rfc() {
    // C.1: 10 and 1337 in five bits, 42 in eight.
    for (bytes, bits, expected) in [(&[0x0a][..], 5, 10), (&[0x1f, 0x9a, 0x0a], 5, 1337), (&[0x2a], 8, 42)] {
        let mut input = Input(bytes);
        assert_eq!((input.integer(bits), input.0.len()), (Some(expected), 0));
    }
}

#[test]
fn fields_of_the_rfc() {
    // C.2: with and without indexing, never indexed, indexed.
    let mut decoder = Decoder::new(&SERVED);
    let head = decode(&mut decoder, "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572");
    assert_eq!((head.size, sizes(&decoder)), (55, (55, vec![55])));
    let mut decoder = Decoder::new(&SERVED);
    let head = decode(&mut decoder, "040c 2f73 616d 706c 652f 7061 7468");
    assert_eq!((head.route, head.size, sizes(&decoder)), (Route::Unknown, 49, (0, vec![])));
    let head = decode(&mut decoder, "1008 7061 7373 776f 7264 0673 6563 7265 74");
    assert_eq!((head.size, sizes(&decoder)), (46, (0, vec![])));
    let head = decode(&mut decoder, "82");
    assert_eq!((head.method, head.size, sizes(&decoder)), (Method::Other, 42, (0, vec![])));
}

#[test]
fn requests_of_the_rfc_plain_and_with_huffman_code() {
    // C.3 and C.4 are the same requests.
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let coded = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new(&SERVED);
        assert!(decode(&mut decoder, blocks[0]).is_request());
        assert_eq!(sizes(&decoder), (57, vec![57]));
        assert_eq!(decoder.table.get(62).map(|entry| &entry.meaning), Some(&Meaning::Authority));
        assert!(decode(&mut decoder, blocks[1]).is_request());
        assert_eq!(sizes(&decoder), (110, vec![53, 57]));
        assert!(decode(&mut decoder, blocks[2]).is_request());
        assert_eq!(sizes(&decoder), (164, vec![54, 53, 57]));
    }
}

#[test]
fn responses_of_the_rfc_evict_as_they_say() {
    // C.5 and C.6, with a table of 256 bytes.
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 \
         474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 \
         666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 \
         3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let coded = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 \
         63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 \
         b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new(&SERVED);
        decoder.table.resize(256).expect("less than there may be");
        decode(&mut decoder, blocks[0]);
        assert_eq!(sizes(&decoder), (222, vec![63, 65, 52, 42]));
        decode(&mut decoder, blocks[1]);
        assert_eq!(sizes(&decoder), (222, vec![42, 63, 65, 52]));
        decode(&mut decoder, blocks[2]);
        assert_eq!(sizes(&decoder), (215, vec![98, 52, 65]));
    }
}

#[test]
fn what_is_no_hpack_is_refused() {
    for block in [
        "80",                // index 0
        "be",                // an index beyond the table
        "ff ff ff ff ff 7f", // an integer without an end
        "82 20",             // a size after a field
        "3f e2 1f",          // a table larger than we allow
        "40 01",             // a string that is not there
        "00 81 ff 00",       // eight bits of padding
        "00 84 ff ff ff ff 00",
        "7f",
        "0f",
    ] {
        assert_eq!(Decoder::new(&SERVED).decode(&hex(block)), Err(DecodeError::Malformed), "{block}");
    }
}

#[test]
fn a_truncated_field_is_malformed() {
    let block = hex("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572");
    for length in 1..block.len() {
        assert_eq!(Decoder::new(&SERVED).decode(&block[..length]), Err(DecodeError::Malformed), "{length}");
    }
}

#[test]
fn a_block_means_something_else_once_the_table_has_changed() {
    let mut decoder = Decoder::new(&SERVED);
    decode(&mut decoder, "40 02 7465 08 747261696c657273"); // te: trailers
    let block = hex("83 86 84 be");
    assert!(decoder.decode(&block).expect("good").is_request());
    assert!(decoder.memo.head.is_some());
    assert!(decoder.decode(&block).expect("good").is_request());
    decode(&mut decoder, "40 01 41 00"); // A, in upper case
    assert!(!decoder.decode(&block).expect("good").is_request());
}

#[test]
fn a_block_that_refers_to_a_long_entry_again_and_again_is_bounded() {
    let mut decoder = Decoder::new(&SERVED);
    let long = [b"\x40\x01a\x7f\xa1\x1e".as_slice(), &[b'x'; 4_000]].concat();
    assert_eq!(decoder.decode(&long).map(|head| head.size), Ok(4_033));
    assert_eq!(decoder.decode(&[0xbe; 16_384]), Err(DecodeError::TooLarge));
}

#[test]
fn the_text_of_a_kept_header_is_there_however_it_is_sent() {
    let mut decoder = Decoder::new(&SERVED);
    let kept = |decoder: &mut Decoder, block: &[u8]| {
        decoder.decode(block).expect("good");
        decoder.kept().get("x-kept").map(<[u8]>::to_vec)
    };
    let request = hex("83 86 84");
    assert_eq!(kept(&mut decoder, &request), None);
    // Not entering the table, plain and coded.
    let literal = [b"\x83\x86\x84\x00\x06x-kept\x05plain".as_slice()].concat();
    assert_eq!(kept(&mut decoder, &literal).as_deref(), Some(&b"plain"[..]));
    let coded = [b"\x83\x86\x84\x00\x06x-kept\x86".as_slice(), &hex("a8eb 1064 9cbf")].concat();
    assert_eq!(kept(&mut decoder, &coded).as_deref(), Some(&b"no-cache"[..]));
    // A block of another call, which is remembered, and then again one with the header.
    assert_eq!(kept(&mut decoder, &request), None);
    assert_eq!(kept(&mut decoder, &literal).as_deref(), Some(&b"plain"[..]));
    // Entering the table, by its index, and its name by its index.
    assert_eq!(kept(&mut decoder, b"\x83\x86\x84\x40\x06x-kept\x05first").as_deref(), Some(&b"first"[..]));
    assert_eq!(kept(&mut decoder, b"\x83\x86\x84\xbe").as_deref(), Some(&b"first"[..]));
    assert_eq!(kept(&mut decoder, b"\x83\x86\x84\x7e\x03new").as_deref(), Some(&b"new"[..]));
    assert_eq!(kept(&mut decoder, b"\x83\x86\x84\xbf").as_deref(), Some(&b"first"[..]));
    assert_eq!(kept(&mut decoder, &request), None);
}
