//! Several connections at a time against plain arrays of bytes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, FileDevice, MemoryDevice};

use crate::Served;
use crate::client::{
    BLOCK_STATUS, Body, Client, DF, FLUSH, FUA, NO_HOLE, READ, REQ_ONE, TRIM, WRITE, WRITE_ZEROES,
};

/// Bytes of the region that each connection has for itself. Requests of different connections have
/// no order.
const REGION: u64 = 3 << 20;
const CONNECTIONS: u64 = 4;

/// The expected content of an answer.
enum Expected {
    Bytes(Vec<u8>),
    Done,
    Trimmed(Range<u64>),
    Status { len: u64, model: Vec<u8> },
}

/// Sends requests of one connection on its region. Several requests are under way, and their ranges
/// do not touch.
fn play(client: &mut Client, start: u64, seed: u64, structured: bool) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut model = vec![0_u8; REGION as usize];
    let mut flying: HashMap<u64, (Range<u64>, Expected)> = HashMap::new();
    let mut holes = 0;
    for step in 0..400 {
        let begin = rng.below(REGION);
        let most = 1 << rng.range(4..22);
        let mut len = rng.below((REGION - begin).min(most) + 1);
        if rng.chance(1, 2) {
            len &= !0xfff;
        }
        let range = begin..begin + len;
        let touches = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        while flying.len() >= 8 || flying.values().any(|(other, _)| touches(other)) {
            holes += settle(client, &mut flying, &mut model);
        }
        let place = range.start as usize..range.end as usize;
        let at = start + begin;
        let fua = if rng.chance(1, 4) { FUA } else { 0 };
        let (cookie, expected) = match rng.below(9) {
            0..=2 => {
                let flags = if structured && len <= 1 << 16 && rng.chance(1, 3) { DF } else { 0 };
                let cookie = client.send(READ, flags, at, Body::Len(len as u32));
                (cookie, Expected::Bytes(model[place].to_vec()))
            }
            3..=5 => {
                rng.fill(&mut model[place.clone()]);
                let cookie = client.send(WRITE, fua, at, Body::Bytes(&model[place]));
                (cookie, Expected::Done)
            }
            6 => {
                model[place].fill(0);
                let flags = fua | if rng.chance(1, 2) { NO_HOLE } else { 0 };
                (client.send(WRITE_ZEROES, flags, at, Body::Len(len as u32)), Expected::Done)
            }
            7 => {
                let cookie = client.send(TRIM, fua, at, Body::Len(len as u32));
                (cookie, Expected::Trimmed(range.clone()))
            }
            _ if structured && len > 0 => {
                let flags = if rng.chance(1, 3) { REQ_ONE } else { 0 };
                let model = model[place].to_vec();
                let cookie = client.send(BLOCK_STATUS, flags, at, Body::Len(len as u32));
                (cookie, Expected::Status { len, model })
            }
            _ => (client.send(FLUSH, 0, 0, Body::Len(0)), Expected::Done),
        };
        assert!(flying.insert(cookie, (range, expected)).is_none(), "step {step}");
    }
    while !flying.is_empty() {
        holes += settle(client, &mut flying, &mut model);
    }
    assert!(holes > 0 || !structured, "holes are told");
    model
}

/// Takes the next answer and compares it with the expected one. Returns the number of bytes that
/// were reported as holes.
fn settle(
    client: &mut Client,
    flying: &mut HashMap<u64, (Range<u64>, Expected)>,
    model: &mut [u8],
) -> usize {
    let (cookie, answer) = client.next();
    let (_, expected) = flying.remove(&cookie).expect("an answer to a question");
    assert_eq!(answer.error, 0);
    match expected {
        Expected::Bytes(bytes) => assert!(answer.data == bytes, "request {cookie}"),
        Expected::Done => {}
        // After a trim, both devices of these tests read as zeroes. The protocol would allow any
        // content.
        Expected::Trimmed(range) => model[range.start as usize..range.end as usize].fill(0),
        Expected::Status { len, model } => {
            let mut at = 0;
            assert!(!answer.runs.is_empty());
            for (run, state) in answer.runs {
                let bytes = &model[at..at + run as usize];
                assert!(run > 0 && (state == 0 || state == 3), "{run} {state}");
                assert!(state == 0 || bytes.iter().all(|&byte| byte == 0), "at {at}");
                at += run as usize;
            }
            assert!(at as u64 <= len);
        }
    }
    answer.hole_bytes
}

fn agree(device: Arc<dyn Device>, seed: u64) {
    let served = Served::new(Arc::clone(&device));
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let served = &served;
        let players: Vec<_> = (0..CONNECTIONS)
            .map(|number| {
                scope.spawn(move || {
                    let structured = number != 1;
                    let mut client = Client::negotiate(&served.socket(), structured);
                    play(&mut client, number * REGION, seed + number, structured)
                })
            })
            .collect();
        players.into_iter().map(|player| player.join().expect("it agrees")).collect()
    });
    let figures = served.stop().expect("flushed");
    assert_eq!((figures.requests, figures.failed), (400 * CONNECTIONS, 0));
    for (number, model) in models.iter().enumerate() {
        let mut found = vec![0; REGION as usize];
        device.read_at(number as u64 * REGION, &mut found).expect("within the device");
        assert!(&found == model, "connection {number}");
    }
}

/// Each of four connections has up to eight requests of mixed kinds under way. All connections read
/// back the written bytes. So does a connection without structured replies.
#[test]
fn connections_agree_with_arrays() {
    for seed in [1, 2] {
        agree(Arc::new(MemoryDevice::new(CONNECTIONS * REGION)), seed);
    }
}

/// The connections also agree on a sparse file, which gains and loses holes.
#[test]
fn connections_agree_on_a_file() {
    let dir = tempfile::tempdir().expect("a directory for the test");
    let device = FileDevice::create(dir.path().join("image"), CONNECTIONS * REGION);
    agree(Arc::new(device.expect("a new file")), 3);
}

/// The largest requests pass. With structured replies, an answer comes in pieces, and holes are not
/// sent. Otherwise an answer comes whole.
#[test]
fn large_requests_pass() {
    const LEN: u64 = 40 << 20;
    const MAX: u32 = 32 << 20;
    let served = Served::new(Arc::new(MemoryDevice::new(LEN)));
    let mut bytes = vec![0; MAX as usize];
    Rng::new(4).fill(&mut bytes[..5 << 20]);
    for structured in [true, false] {
        let mut client = Client::negotiate(&served.socket(), structured);
        assert_eq!(client.call(WRITE, FUA, 77, Body::Bytes(&bytes)).error, 0);
        let answer = client.call(READ, 0, 77, Body::Len(MAX));
        assert!(answer.error == 0 && answer.data == bytes);
        assert_eq!(client.call(READ, 0, 0, Body::Len(MAX + 1)).error, 22);
        if structured {
            assert_eq!(client.call(READ, DF, 0, Body::Len(2 << 20)).error, 75);
        }
        // A request for zeroes may be longer than any payload: here 40 MiB, the whole device.
        assert_eq!(client.call(WRITE_ZEROES, 0, 0, Body::Len(LEN as u32)).error, 0);
        let answer = client.call(READ, 0, 0, Body::Len(MAX));
        assert!(answer.data.iter().all(|&byte| byte == 0));
        assert_eq!(answer.hole_bytes, if structured { MAX as usize } else { 0 });
    }
}
