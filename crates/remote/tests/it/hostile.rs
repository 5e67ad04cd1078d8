//! Tests of stores with wrong objects: the checksums are right, but the content is wrong.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_remote::store::Store;
use buttress_remote::store::simulated::SimStore;
use buttress_remote::{Options, Secret, Site};
use bytes::Bytes;

use crate::{create, open, options, store};

const LEN: u64 = 130 << 20;
const ENVELOPE: usize = 64;

/// Gives an object the checksums of its present content.
fn sum_up(bytes: &mut [u8]) {
    let is_data = bytes.get(8) == Some(&2);
    if !is_data && bytes.len() >= ENVELOPE {
        let crc = crc_fast::crc32_iscsi(&bytes[ENVELOPE..]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    }
    if bytes.len() >= ENVELOPE {
        bytes[12..16].fill(0);
        let crc = crc_fast::crc32_iscsi(&bytes[..ENVELOPE]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Replaces a number in a text by another number of any size.
fn other_number(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let digits: Vec<usize> =
        (ENVELOPE..bytes.len()).filter(|&at| bytes[at].is_ascii_digit()).collect();
    if digits.is_empty() {
        return;
    }
    let at = *rng.choose(&digits).expect("some");
    let end = (at..bytes.len()).find(|&end| !bytes[end].is_ascii_digit()).unwrap_or(bytes.len());
    let numbers = ["0", "1", "4095", "4294967295", "4294967296", "9223372036854775808"];
    let largest = "18446744073709551615";
    let number = if rng.chance(1, 4) { largest } else { *rng.choose(&numbers).expect("some") };
    bytes.splice(at..end, number.bytes());
    let len = (bytes.len() as u64).to_le_bytes();
    bytes[16..24].copy_from_slice(&len);
}

fn other_bytes(bytes: &mut [u8], from: usize, rng: &mut Rng) {
    for _ in 0..=rng.below(3) {
        let at = from + rng.below((bytes.len() - from) as u64) as usize;
        bytes[at] = if rng.chance(1, 2) { 255 } else { rng.below(256) as u8 };
    }
}

/// A volume with a checkpoint and data objects after it.
fn filled() -> Arc<SimStore> {
    let store = store(8);
    let device = create(&store, LEN);
    let mut rng = Rng::new(5);
    for round in 0..60_u64 {
        let mut content = vec![0; 4096 * (1 + rng.below(12) as usize)];
        rng.fill(&mut content);
        device.write_at(rng.below(LEN / 4096 - 12) * 4096, &content).expect("within");
        if round == 40 {
            device.checkpoint().expect("a store");
        }
    }
    device.discard(64 << 20, 1 << 20).expect("within");
    device.close().expect("a store");
    store
}

/// Whatever an object contains, a reader and a writer get an answer, or an error with a text.
#[test]
fn objects_with_wrong_content_are_answered_by_errors() {
    let store = filled();
    let all: Vec<String> = store.list("v").expect("a store").into_iter().map(|m| m.name).collect();
    let right: Vec<Bytes> = all.iter().map(|name| store.get(name).expect("listed")).collect();
    let timeout = std::time::Duration::ZERO;
    let reading = Options { write: false, timeout, ..options() };
    let mut refused = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let newest = all.iter().rposition(|name| name.contains("/manifest/")).expect("one");
        let index = if rng.chance(1, 2) { newest } else { rng.below(all.len() as u64) as usize };
        let mut bytes = right[index].to_vec();
        let is_manifest = all[index].contains("/manifest/");
        match rng.below(4) {
            0 | 1 if is_manifest => other_number(&mut bytes, &mut rng),
            0 => other_bytes(&mut bytes[..ENVELOPE], 8, &mut rng),
            3 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
            _ if bytes.len() > ENVELOPE => other_bytes(&mut bytes, ENVELOPE, &mut rng),
            _ => {}
        }
        sum_up(&mut bytes);
        store.put(&all[index], bytes.into()).expect("a store");
        let looked = open(&store, reading.clone()).and_then(|device| {
            let mut content = vec![0; 1 << 20];
            for at in (0..device.len().min(LEN).saturating_sub(1 << 20)).step_by(16 << 20) {
                device.read_at(at, &mut content)?;
            }
            Ok(())
        });
        if let Err(error) = looked {
            assert!(!error.to_string().is_empty());
            refused += 1;
        }
        store.put(&all[index], right[index].clone()).expect("a store");
    }
    assert!(refused > 50, "{refused} of 400");
    open(&store, options()).expect("all is right again").close().expect("a store");
}

/// Objects with names that no writer gives are left alone, whatever their numbers are.
#[test]
fn names_with_the_largest_numbers_are_not_taken_for_ours() {
    let store = store(9);
    let secret = || Secret::new(b"secret".to_vec()).expect("some bytes");
    let site = || Site::in_store(store.clone(), "v", options()).encrypted(secret());
    site().create(LEN).expect("an honest store").close().expect("a store");
    for name in ["v/manifest/18446744073709551615", "v/key/4294967295"] {
        store.put(name, Bytes::from_static(b"a stranger")).expect("a store");
    }
    site().open().expect("a volume").close().expect("a store");
    let other = Secret::new(b"another".to_vec()).expect("some bytes");
    site().rekey(&other).expect("a store");
    Site::in_store(store.clone(), "v", options()).encrypted(other).open().expect("a volume");
}
