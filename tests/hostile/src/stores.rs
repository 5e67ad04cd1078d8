//! Volumes in a store of objects that were made to do harm: their checksums are right, and their
//! content is wrong.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Device, Read};
use buttress_remote::store::Store;
use buttress_remote::store::simulated::{SimStore, Weather};
use buttress_remote::{Options, Site};
use serde_json::Value;

use crate::dice::Dice;

/// The length of the volume, which needs more than one page of the map.
const LEN: u64 = 130 << 20;
const ENVELOPE: usize = 64;
const FRAME: usize = 4100;
/// Most edits of one input.
const EDITS_MAX: usize = 4;

type Objects = BTreeMap<String, Vec<u8>>;

fn site(store: &Arc<SimStore>, prefix: &str, write: bool) -> Site {
    let options = Options {
        write,
        takeover: write,
        object_len: 64 << 10,
        memory: 4 << 20,
        in_flight: 1,
        timeout: Duration::ZERO,
        min_keep: Duration::ZERO,
        ..Options::default()
    };
    Site::in_store(store.clone(), prefix, options)
}

/// The objects of a volume with a base, a checkpoint, data objects after it, pins and the traces of
/// a writer that died.
fn base() -> &'static Objects {
    static MADE: OnceLock<Objects> = OnceLock::new();
    MADE.get_or_init(|| {
        let store = Arc::new(SimStore::new(8, Weather::default()));
        let mut rng = Rng::new(5);
        let mut fill = |site: &Site, writes: u64| {
            let device = site.open().expect("a volume");
            for round in 0..writes {
                let mut content = vec![0; 4096 * (1 + rng.below(12) as usize)];
                rng.fill(&mut content);
                device.write_at(rng.below(LEN / 4096 - 12) * 4096, &content).expect("within");
                if round == writes * 2 / 3 {
                    device.checkpoint().expect("a store");
                }
            }
            device.discard(64 << 20, 1 << 20).expect("within");
            device.push().expect("a store");
            device
        };
        let origin = site(&store, "o", true);
        drop(origin.create(LEN).expect("a store"));
        fill(&origin, 20).close().expect("a store");
        let clone = site(&store, "v", true);
        origin.clone_to(&clone).expect("a store");
        fill(&clone, 60).abandon();
        clone.pin("kept").expect("a store");
        let named = |name: String| {
            let bytes = store.get(&name).expect("listed").to_vec();
            (name, bytes)
        };
        store.names().into_iter().map(named).collect()
    })
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut raw = [0; 8];
    if let Some(part) = bytes.get(at..at + len) {
        raw[..len].copy_from_slice(part);
    }
    u64::from_le_bytes(raw)
}

/// A number for which limits and counts are likely to be wrong.
fn odd(dice: &mut Dice<'_>, was: u64) -> u64 {
    match dice.below(10) {
        0 => 0,
        1 => 1,
        2 => was.wrapping_add(1),
        3 => was.wrapping_sub(1),
        4 => u64::MAX,
        5 => 1 << dice.below(64),
        6 => u64::from(u32::MAX),
        7 => was ^ 1 << dice.below(64),
        8 => dice.below(65536) as u64,
        _ => dice.word(),
    }
}

/// Replaces a number in the text of a body.
fn edit_text(bytes: &mut Vec<u8>, dice: &mut Dice<'_>) {
    let is_digit = |bytes: &[u8], at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let begins = |at: &usize| is_digit(bytes, *at) && !is_digit(bytes, at - 1);
    let all: Vec<usize> = (ENVELOPE..bytes.len()).filter(begins).collect();
    let Some(&at) = all.get(dice.below(all.len())) else { return };
    let end = (at..bytes.len()).find(|&end| !is_digit(bytes, end)).unwrap_or(bytes.len());
    let was = std::str::from_utf8(&bytes[at..end]).ok().and_then(|text| text.parse().ok());
    let other = odd(dice, was.unwrap_or(0)).to_string();
    bytes.splice(at..end, other.bytes());
}

/// Replaces a number of a body, or of the envelope after the magic number.
fn edit_number(bytes: &mut [u8], from: usize, dice: &mut Dice<'_>) {
    let len = *dice.one(&[2, 4, 8]);
    let slots = bytes.len().saturating_sub(from) / len;
    if slots == 0 {
        return;
    }
    // A choice has two bytes, so later parts are reached, too.
    let at = from + dice.below(slots.min(65536)) * len;
    let other = odd(dice, number(bytes, at, len)).to_le_bytes();
    bytes[at..at + len].copy_from_slice(&other[..len]);
}

/// Copies a part of a body over another part, or to the end.
fn edit_parts(bytes: &mut Vec<u8>, dice: &mut Dice<'_>) {
    let unit = *dice.one(&[16, 24, 40]);
    let count = bytes.len().saturating_sub(ENVELOPE) / unit;
    if count == 0 {
        return;
    }
    let at = ENVELOPE + dice.below(count) * unit;
    let part = bytes[at..at + unit].to_vec();
    match dice.below(3) {
        0 => bytes.extend_from_slice(&part),
        1 => drop(bytes.drain(at..at + unit)),
        _ => {
            let to = ENVELOPE + dice.below(count) * unit;
            bytes[to..to + unit].copy_from_slice(&part);
        }
    }
}

/// Gives every part and object the checksum of its present content, from the leaves up.
fn sum_up(objects: &mut Objects) {
    let manifests: Vec<String> = objects
        .keys()
        .filter(|n| n.contains("/manifest/") || n.contains("/pin/"))
        .cloned()
        .collect();
    for name in &manifests {
        let body = objects[name].get(ENVELOPE..).unwrap_or_default();
        let Ok(mut body) = serde_json::from_slice::<Value>(body) else { continue };
        let parts = |body: &Value, of: &str| body[of].as_array().map_or(0, Vec::len);
        for index in 0..parts(&body, "leaves") {
            sum_leaf(objects, &body["leaves"][index][1]);
            sum_part(objects, &mut body["leaves"][index][1]);
        }
        for index in 0..parts(&body, "tables") {
            sum_part(objects, &mut body["tables"][index]["at"]);
        }
        for index in 0..parts(&body, "recent") {
            let recent = &mut body["recent"][index];
            let count = |of: &str| recent[of].as_u64().unwrap_or(0) as usize;
            let at = count("sectors").saturating_mul(FRAME).saturating_add(ENVELOPE);
            let len = count("extents").saturating_mul(16);
            let found = object(objects, recent["object"].as_u64(), "/data/");
            let extents = found.and_then(|bytes| bytes.get(at..at.checked_add(len)?));
            if let Some(extents) = extents {
                recent["crc"] = crc_fast::crc32_iscsi(extents).into();
            }
        }
        let text = serde_json::to_vec(&body).unwrap_or_default();
        if let Some(bytes) = objects.get_mut(name).filter(|bytes| bytes.len() > ENVELOPE) {
            bytes.truncate(ENVELOPE);
            bytes.extend_from_slice(&text);
        }
    }
}

fn object<'o>(objects: &'o Objects, number: Option<u64>, kind: &str) -> Option<&'o Vec<u8>> {
    let end = format!("-{:016x}", number?);
    let mut all = objects.iter();
    all.find(|(name, _)| name.contains(kind) && name.ends_with(&end)).map(|(_, bytes)| bytes)
}

fn part(objects: &Objects, number: u64, at: u64, len: u64) -> Option<&[u8]> {
    let bytes = object(objects, Some(number), "/map/")?;
    bytes.get(at as usize..at.checked_add(len)? as usize)
}

/// Corrects the checksum of the part that a reference of a manifest names.
fn sum_part(objects: &Objects, at: &mut Value) {
    let [number, offset, len] = ["object", "offset", "len"].map(|of| at[of].as_u64().unwrap_or(0));
    if let Some(bytes) = part(objects, number, offset, len) {
        at["crc"] = crc_fast::crc32_iscsi(bytes).into();
    }
}

/// Corrects the checksums of the pages that a leaf names.
fn sum_leaf(objects: &mut Objects, at: &Value) {
    let [number_of, offset, len] =
        ["object", "offset", "len"].map(|of| at[of].as_u64().unwrap_or(0));
    let Some(leaf) = part(objects, number_of, offset, len) else { return };
    let mut leaf = leaf.to_vec();
    for entry in leaf.chunks_exact_mut(24) {
        let (object, at, len) = (number(entry, 0, 8), number(entry, 12, 4), number(entry, 16, 4));
        if let Some(page) = part(objects, object, at, len) {
            let crc = crc_fast::crc32_iscsi(page).to_le_bytes();
            entry[20..].copy_from_slice(&crc);
        }
    }
    let end = format!("-{number_of:016x}");
    let mut all = objects.iter_mut();
    let found = all.find(|(name, _)| name.contains("/map/") && name.ends_with(&end));
    let offset = offset as usize;
    if let Some(there) = found.and_then(|(_, bytes)| bytes.get_mut(offset..offset + leaf.len())) {
        there.copy_from_slice(&leaf);
    }
}

/// Gives an envelope the length and the checksums of its object.
fn sum_envelope(bytes: &mut [u8], keeps_len: bool) {
    if bytes.len() < ENVELOPE {
        return;
    }
    if !keeps_len {
        let len = (bytes.len() as u64).to_le_bytes();
        bytes[16..24].copy_from_slice(&len);
    }
    if number(bytes, 8, 2) != 2 {
        let crc = crc_fast::crc32_iscsi(&bytes[ENVELOPE..]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    }
    bytes[12..16].fill(0);
    let crc = crc_fast::crc32_iscsi(&bytes[..ENVELOPE]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Changes a few things in the objects of a volume, as the bytes choose. The volume is then read,
/// written, collected and cloned.
///
/// # Panics
///
/// If there is a bug.
pub fn store(data: &[u8]) {
    let mut dice = Dice::new(data);
    let mut objects = base().clone();
    let names: Vec<String> = objects.keys().cloned().collect();
    let of = |kind: &str| -> Vec<usize> {
        (0..names.len()).filter(|&at| names[at].contains(kind)).collect()
    };
    let newest = names.iter().rposition(|name| name.starts_with("v/manifest/")).unwrap_or(0);
    let mut edited = Vec::new();
    for _ in 0..=dice.below(EDITS_MAX) {
        let index = match dice.below(8) {
            0..=2 => newest,
            3 | 4 => *dice.one(&of("/map/")),
            5 => *dice.one(&of("/data/")),
            6 => *dice.one(&of("/pin/")),
            _ => dice.below(names.len()),
        };
        let name = &names[index];
        let bytes = objects.entry(name.clone()).or_default();
        let is_text = ["/manifest/", "/pin/", "/writer/"].iter().any(|kind| name.contains(kind));
        let mut keeps_len = false;
        match dice.below(8) {
            0..=5 if is_text => edit_text(bytes, &mut dice),
            0..=3 => edit_number(bytes, ENVELOPE, &mut dice),
            4 | 5 => edit_parts(bytes, &mut dice),
            6 if bytes.len() >= ENVELOPE => {
                edit_number(&mut bytes[..ENVELOPE], 8, &mut dice);
                keeps_len = true;
            }
            _ => bytes.truncate(dice.below(bytes.len() + 1)),
        }
        edited.push((name.clone(), keeps_len));
    }
    sum_up(&mut objects);
    let store = Arc::new(SimStore::new(1, Weather::default()));
    for (name, mut bytes) in objects {
        let mut edits = edited.iter();
        let keeps_len = edits.any(|(edited, keeps_len)| *edited == name && *keeps_len);
        sum_envelope(&mut bytes, keeps_len);
        store.put(&name, bytes.into()).expect("memory");
    }
    let _ = read(&store, "v");
    let _ = change(&store);
    let _ = read(&store, "v");
    let _ = read(&store, "c");
    let _ = site(&store, "c", true).delete();
    let _ = site(&store, "v", true).delete();
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Reads the whole content of a volume, in parts, many at once.
fn read(store: &Arc<SimStore>, prefix: &str) -> Outcome {
    let own = site(store, prefix, false);
    let _ = own.commits(100);
    let device = own.open()?;
    let len = device.len().min(LEN);
    let mut parts = vec![0; 16 << 16];
    let offsets = (0..len.saturating_sub(1 << 20)).step_by(9 << 20);
    for at in offsets.chain([device.len().saturating_sub(1 << 16)]) {
        let extent = device.extent_at(at, (device.len() - at).min(1 << 30))?;
        assert!(extent.len > 0 || device.len() == at);
        let each = |(index, buf): (u64, _)| Read { offset: at + index * (1 << 16), buf };
        let mut reads: Vec<_> = (0..).zip(parts.chunks_mut(1 << 16)).map(each).collect();
        let _ = device.read_many(&mut reads);
    }
    let _ = device.newer_commit()?;
    Ok(())
}

/// Writes, commits, collects, pins and clones.
fn change(store: &Arc<SimStore>) -> Outcome {
    let own = site(store, "v", true);
    let device = own.open()?;
    let content = [7; 8192];
    device.write_at(0, &content)?;
    device.flush()?;
    let mut found = [0; 8192];
    device.read_at(0, &mut found)?;
    assert!(found == content, "what was written comes back");
    device.discard(1 << 20, 1 << 20)?;
    let _ = device.status();
    device.checkpoint()?;
    device.collect()?;
    device.collect()?;
    let _ = own.pin("new");
    let _ = own.clone_to(&site(store, "c", true));
    device.close()?;
    let again = site(store, "v", false).open()?;
    again.read_at(0, &mut found)?;
    assert!(found == content, "what was committed comes back");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Correcting checksums changes nothing of a good volume. Without choices, the volume stays
    /// readable.
    #[test]
    fn a_right_volume_is_summed_up_already() {
        let mut objects = base().clone();
        sum_up(&mut objects);
        for (name, bytes) in &mut objects {
            sum_envelope(bytes, false);
            let is_text = name.contains("/manifest/") || name.contains("/pin/");
            assert!(is_text || *bytes == base()[name], "{name}");
        }
        let store = Arc::new(SimStore::new(1, Weather::default()));
        for (name, bytes) in objects {
            store.put(&name, bytes.into()).expect("memory");
        }
        read(&store, "v").expect("it is right");
        change(&store).expect("it is right");
        read(&store, "c").expect("it is right");
    }
}
