//! Handshakes, whole and damaged.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::MemoryDevice;

use super::*;
use crate::wire::export_flag;

const LEN: u64 = 123 << 12;

fn export() -> Export {
    Export::new(Arc::new(MemoryDevice::new(LEN)), "disk", false).expect("a short name")
}

fn start(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn add(script: &mut Vec<u8>, option: u32, data: &[u8]) {
    script.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    script.extend_from_slice(&option.to_be_bytes());
    script.extend_from_slice(&(data.len() as u32).to_be_bytes());
    script.extend_from_slice(data);
}

fn string(text: &str) -> Vec<u8> {
    let mut data = (text.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(text.as_bytes());
    data
}

fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|wanted| wanted.to_be_bytes()));
    data
}

fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

/// The result of a handshake: the terms, and the server's output after its greeting.
fn run(mut script: &[u8]) -> (Result<Terms, Disconnect>, Vec<u8>) {
    let mut said = Vec::new();
    let terms = negotiate(&mut script, &mut said, &export());
    (terms, said.split_off(18))
}

/// The replies, taken apart: option, kind, data.
fn replies(mut said: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !said.is_empty() {
        let mut fields = Fields(said);
        assert_eq!(fields.u64(), Some(wire::OPTION_REPLY_MAGIC));
        let (option, kind) = (fields.u32().expect("whole"), fields.u32().expect("whole"));
        let len = fields.u32().expect("whole") as usize;
        found.push((option, kind, fields.bytes(len).expect("whole").to_vec()));
        said = fields.0;
    }
    found
}

/// A modern client: structured replies, allocation, the limits, the name.
#[test]
fn agrees_on_everything() {
    let mut script = start(3);
    add(&mut script, option::STARTTLS, b"");
    add(&mut script, option::STRUCTURED_REPLY, b"");
    add(&mut script, option::LIST, b"");
    let asked = queries("", &["qemu:dirty", "base:allocation"]);
    add(&mut script, option::SET_META_CONTEXT, &asked);
    add(&mut script, option::GO, &go("disk", &[info::NAME, info::DESCRIPTION, 77]));
    let (terms, said) = run(&script);
    assert_eq!(terms.expect("agreed"), Terms { structured: true, allocation: true });

    let replies = replies(&said);
    let kinds: Vec<_> = replies.iter().map(|(option, kind, _)| (*option, *kind)).collect();
    use option_reply as reply;
    assert_eq!(
        kinds,
        [
            (option::STARTTLS, reply::UNSUPPORTED),
            (option::STRUCTURED_REPLY, reply::ACK),
            (option::LIST, reply::SERVER),
            (option::LIST, reply::ACK),
            (option::SET_META_CONTEXT, reply::META_CONTEXT),
            (option::SET_META_CONTEXT, reply::ACK),
            (option::GO, reply::INFO),
            (option::GO, reply::INFO),
            (option::GO, reply::INFO),
            (option::GO, reply::INFO),
            (option::GO, reply::ACK),
        ]
    );
    assert_eq!(replies[2].2, string("disk"));
    let mut fields = Fields(&replies[6].2);
    assert_eq!(fields.u16(), Some(info::EXPORT));
    assert_eq!(fields.u64(), Some(LEN));
    let flags = fields.u16().expect("whole");
    assert_ne!(flags & export_flag::CAN_MULTI_CONN, 0);
    assert_ne!(flags & export_flag::SEND_DF, 0);
    assert_eq!(flags & export_flag::READ_ONLY, 0);
    let mut fields = Fields(&replies[7].2);
    assert_eq!(fields.u16(), Some(info::BLOCK_SIZE));
    let sizes = [fields.u32(), fields.u32(), fields.u32()];
    assert_eq!(sizes, [Some(1), Some(4096), Some(32 << 20)]);
}

/// The oldest option is a name. The answer is only the facts, with padding unless the client
/// declined the padding.
#[test]
fn serves_the_oldest_clients() {
    for (flags, len) in [(1, 10 + 124), (3, 10)] {
        let mut script = start(flags);
        add(&mut script, option::EXPORT_NAME, b"disk");
        let (terms, said) = run(&script);
        assert_eq!(terms.expect("agreed"), Terms::default());
        assert_eq!(said.len(), len);
        assert_eq!(said[..8], LEN.to_be_bytes());
    }
    let mut script = start(3);
    add(&mut script, option::EXPORT_NAME, b"other");
    assert!(matches!(run(&script).0, Err(Disconnect::Protocol(Nonsense::Name))));
}

/// Impossible options are refused with a message, and the handshake continues.
#[test]
fn refuses_politely() {
    let mut long_name = go("", &[]);
    long_name[..4].copy_from_slice(&5000_u32.to_be_bytes());
    let mut many = queries("", &[]);
    many[4..].copy_from_slice(&u32::MAX.to_be_bytes());
    let cases: [(u32, Vec<u8>, u32); 10] = [
        (option::GO, go("other", &[]), option_reply::UNKNOWN),
        (option::INFO, b"\0\0".to_vec(), option_reply::INVALID),
        (option::INFO, long_name, option_reply::INVALID),
        (option::LIST, b"x".to_vec(), option_reply::INVALID),
        (option::STRUCTURED_REPLY, b"x".to_vec(), option_reply::INVALID),
        (option::SET_META_CONTEXT, queries("", &["base:allocation"]), option_reply::INVALID),
        (option::LIST_META_CONTEXT, many, option_reply::INVALID),
        (11, Vec::new(), option_reply::UNSUPPORTED),
        (0xffff_ffff, vec![1; 65536], option_reply::UNSUPPORTED),
        (option::INFO, vec![1; 100_000], option_reply::TOO_BIG),
    ];
    for (option, data, expected) in cases {
        let mut script = start(3);
        add(&mut script, option, &data);
        add(&mut script, option::ABORT, b"");
        let (terms, said) = run(&script);
        assert!(matches!(terms, Err(Disconnect::Done)), "{option}: {terms:?}");
        let replies = replies(&said);
        assert_eq!(replies[0].1, expected, "{option}");
        assert!(!replies[0].2.is_empty(), "in words");
        assert_eq!(replies[1].1, option_reply::ACK);
    }
}

/// H1, H2: senseless input ends the handshake, and a claimed length takes no memory.
#[test]
fn cuts_off() {
    let cut = |script: &[u8]| match run(script).0 {
        Err(Disconnect::Protocol(nonsense)) => nonsense,
        other => panic!("{other:?}"),
    };
    assert_eq!(cut(&start(4)), Nonsense::Flags(4));
    let mut script = start(3);
    script.extend_from_slice(&[9; 16]);
    assert_eq!(cut(&script), Nonsense::OptionMagic(0x0909_0909_0909_0909));
    let mut script = start(3);
    add(&mut script, option::INFO, b"");
    script[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(cut(&script), Nonsense::OptionLen { option: option::INFO, len: u32::MAX });
    let mut script = start(3);
    for _ in 0..OPTIONS_MAX {
        add(&mut script, option::LIST, b"");
    }
    assert_eq!(cut(&script), Nonsense::Options);
}

/// Any damage to a handshake causes no panic and no wait, and all output is well-formed.
#[test]
fn survives_damage() {
    let mut whole = start(3);
    add(&mut whole, option::STRUCTURED_REPLY, b"");
    add(&mut whole, option::LIST_META_CONTEXT, &queries("disk", &["base:"]));
    add(&mut whole, option::SET_META_CONTEXT, &queries("", &["base:allocation"]));
    add(&mut whole, option::INFO, &go("", &[info::NAME, info::BLOCK_SIZE]));
    add(&mut whole, option::GO, &go("disk", &[info::DESCRIPTION]));
    assert!(run(&whole).0.is_ok());
    let mut rng = Rng::new(0x6e62_6401);
    for round in 0..20_000 {
        let mut script = whole.clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(script.len() as u64) as usize;
            match rng.below(5) {
                0 => script[at] ^= 1 << rng.below(8),
                1 => script[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
                2 => script.truncate(at.max(1)),
                3 => script.insert(at, rng.next_u64() as u8),
                _ => drop(script.remove(at)),
            }
            if script.is_empty() {
                break;
            }
        }
        let (_, said) = run(&script);
        assert!(said.len() < 64 << 10, "round {round}");
    }
}
