//! Clients that break the protocol, are slow, or go away.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::MemoryDevice;
use buttress_nbd::Options;

use crate::Served;
use crate::client::{
    BLOCK_STATUS, Body, DISCONNECT, FLUSH, READ, REQ_ONE, TRIM, WRITE, WRITE_ZEROES, header,
};

const LEN: u64 = 1 << 20;

fn served() -> Served {
    Served::new(Arc::new(MemoryDevice::new(LEN)))
}

/// Each wrong request gets the right error number, and the connection goes on.
#[test]
fn wrong_requests_are_refused() {
    let served = served();
    let mut client = served.client();
    let bytes = [7; 5000];
    let invalid = 22;
    let cases = [
        (READ, 0, LEN, Body::Len(1), invalid),
        (READ, 0, u64::MAX, Body::Len(2), invalid),
        (READ, 0, LEN - 1, Body::Len(2), invalid),
        (READ, 0, 0, Body::Len(u32::MAX), invalid),
        (READ, REQ_ONE, 0, Body::Len(1), invalid),
        (WRITE, 0, LEN - 4999, Body::Bytes(&bytes), 28),
        (WRITE, 0, u64::MAX, Body::Bytes(&bytes), 28),
        (WRITE, 16, 0, Body::Bytes(&bytes), invalid),
        (WRITE_ZEROES, 0, 1, Body::Len(LEN as u32), 28),
        (TRIM, 0, LEN, Body::Len(u32::MAX), 28),
        (BLOCK_STATUS, 0, 0, Body::Len(0), invalid),
        (BLOCK_STATUS, 0, LEN, Body::Len(1), invalid),
        // Not offered: CACHE, RESIZE, and unknown commands.
        (5, 0, 0, Body::Len(1), invalid),
        (8, 0, 0, Body::Len(1), invalid),
        (999, 0xffff, u64::MAX, Body::Len(u32::MAX), invalid),
    ];
    for (number, (command, flags, offset, body, expected)) in cases.into_iter().enumerate() {
        let answer = client.call(command, flags, offset, body);
        assert_eq!(answer.error, expected, "case {number}");
        assert!(answer.data.iter().all(|&byte| byte == 0xee), "no bytes come with a refusal");
    }
    assert_eq!(client.call(READ, 0, LEN, Body::Len(0)).error, 0);
    assert_eq!(client.call(WRITE, 0, LEN, Body::Bytes(b"")).error, 0);
    assert_eq!(client.call(FLUSH, 0, u64::MAX, Body::Len(9)).error, 0);
    let zeroes = client.call(READ, 0, 0, Body::Len(LEN as u32));
    assert!(zeroes.data.iter().all(|&byte| byte == 0), "none of it was done");
    client.send(DISCONNECT, 0, 0, Body::Len(0));
    assert_eq!(client.stream.read(&mut [0]).expect("a clean end"), 0);
}

/// A read-only export can be read, and refuses every change.
#[test]
fn read_only_is_kept() {
    let device = Arc::new(MemoryDevice::new(LEN));
    let served = Served::with(device, true, Options::default());
    let mut client = served.client();
    assert_eq!(client.call(WRITE, 0, 0, Body::Bytes(&[1; 3000])).error, 1);
    assert_eq!(client.call(WRITE_ZEROES, 0, 0, Body::Len(10)).error, 1);
    assert_eq!(client.call(TRIM, 0, 0, Body::Len(10)).error, 1);
    assert_eq!(client.call(FLUSH, 0, 0, Body::Len(0)).error, 0);
    assert_eq!(client.call(READ, 0, 0, Body::Len(3000)).data, [0; 3000]);
}

/// Input that makes no sense ends its connection, and no other connection.
#[test]
fn nonsense_ends_a_connection() {
    let served = served();
    let mut good = served.client();
    let mut rng = Rng::new(8);
    for round in 0..60 {
        let mut bad = served.client();
        let mut message = match round % 4 {
            // A payload longer than any server would hold.
            0 => header(WRITE, 0, 1, 0, u32::MAX),
            1 => header(WRITE, 0, 1, 0, (32 << 20) + 1),
            2 => vec![0; 28],
            _ => {
                let mut noise = vec![0; rng.range(1..5000) as usize];
                rng.fill(&mut noise);
                noise
            }
        };
        if rng.chance(1, 2) {
            message.truncate(rng.range(1..28) as usize);
        }
        bad.stream.write_all(&message).expect("it listens");
        let _ = bad.stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        // The connection may end by a close or by a reset.
        let _ = bad.stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "round {round}");
        assert_eq!(good.call(READ, 0, 0, Body::Len(10)).error, 0);
    }
}

/// Damaged streams of requests cause no panic, and a good client is served meanwhile.
#[test]
fn damaged_requests_do_no_harm() {
    let served = served();
    let mut good = served.client();
    let mut rng = Rng::new(0x6e62_6402);
    for _ in 0..300 {
        let mut bad = served.client();
        let mut script = Vec::new();
        for cookie in 0..8 {
            let command =
                [READ, WRITE, FLUSH, TRIM, WRITE_ZEROES, BLOCK_STATUS][rng.below(6) as usize];
            let len = rng.below(9000) as u32;
            script.extend(header(command, 0, cookie, rng.below(LEN / 2) + LEN / 2, len));
            if command == WRITE {
                script.resize(script.len() + len as usize, 0x55);
            }
        }
        for _ in 0..3 {
            let at = rng.below(script.len() as u64) as usize;
            script[at] ^= 1 << rng.below(8);
        }
        script.truncate(rng.range(1..script.len() as u64 + 1) as usize);
        let mut input = bad.stream.try_clone().expect("a socket");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = input.write_all(&script);
                let _ = input.shutdown(std::net::Shutdown::Write);
            });
            let mut sink = Vec::new();
            let _ = bad.stream.read_to_end(&mut sink);
        });
        assert_eq!(good.call(READ, 0, 0, Body::Len(10)).data, [0; 10]);
    }
}

/// Some clients never read their answers, stop within a request, or do not finish the handshake.
/// Other clients are served at once, and the slow clients are dropped.
#[test]
fn slow_clients_delay_no_other_client() {
    let options = Options {
        threads: 4,
        handshake: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let served = Served::with(Arc::new(MemoryDevice::new(LEN)), false, options);
    let mut silent = UnixStream::connect(served.socket()).expect("the server listens");
    let mut halfway = served.client();
    halfway.stream.write_all(&header(WRITE, 0, 1, 0, 1 << 20)[..20]).expect("it listens");
    let mut greedy = served.client();
    let data = vec![3; LEN as usize];
    greedy.call(WRITE, 0, 0, Body::Bytes(&data));
    for _ in 0..64 {
        greedy.send(READ, 0, 0, Body::Len(LEN as u32));
    }

    let mut good = served.client();
    for _ in 0..200 {
        assert_eq!(good.call(READ, 0, 5, Body::Len(10)).data, [3; 10]);
    }
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest);
    assert_eq!(rest.len(), 18, "nothing but the greeting");
    rest.clear();
    let _ = halfway.stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    std::thread::sleep(Duration::from_secs(2));
    rest.clear();
    let _ = greedy.stream.read_to_end(&mut rest);
    assert!(rest.len() < 63 << 20, "it was cut off, and {} bytes were in the pipe", rest.len());
    assert_eq!(good.call(READ, 0, 5, Body::Len(10)).data, [3; 10], "silence between is no sin");
}

/// A client above the limit is turned away, and is accepted after another client has left.
#[test]
fn connections_are_limited() {
    let options = Options { connections: 2, ..Options::default() };
    let served = Served::with(Arc::new(MemoryDevice::new(LEN)), false, options);
    let first = served.client();
    let _second = served.client();
    let mut third = UnixStream::connect(served.socket()).expect("the server listens");
    assert_eq!(third.read(&mut [0]).expect("a clean end"), 0);
    drop(first);
    loop {
        let mut again = UnixStream::connect(served.socket()).expect("the server listens");
        if again.read(&mut [0]).is_ok_and(|read| read > 0) {
            break;
        }
    }
}
