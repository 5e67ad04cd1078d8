//! Changes to the sample by a second and a third writer.

use super::bytes::mix;
use super::{Scale, Target, at, noise, words};

/// Changes a tree that was filled with `scale` and changed in all rounds before `round` (from 1
/// on).
pub fn change(target: &dyn Target, scale: &Scale, round: u64) {
    let seed = mix(scale.seed ^ round << 48);
    new_files(target, scale, round, seed);
    big_files(target, scale, round, seed);
    links(target, scale, round);
    attributes(target, round);
    replaced_files(target, scale, round, seed);
}

/// Makes a directory for this round, and removes half of the last round's directory.
fn new_files(target: &dyn Target, scale: &Scale, round: u64, seed: u64) {
    target.make_dir(at!("round-{round}"), 0o755);
    for file in 0..scale.dirs * scale.files / 3 {
        let name = format!("round-{round}/new file {file:05}");
        target.make_file(name.as_bytes(), 0o644);
        let chance = mix(seed ^ file);
        target.write(name.as_bytes(), 0, &noise(chance, (chance % 9000) as usize));
        if file.is_multiple_of(9) {
            target.set_xattr(name.as_bytes(), "user.round", at!("{round}"));
        }
    }
    if round > 1 {
        for file in (0..scale.dirs * scale.files / 3).step_by(2) {
            target.remove_file(at!("round-{}/new file {file:05}", round - 1));
        }
        target.rename(at!("round-{}", round - 1), at!("round-{round}/the one before"));
    }
}

fn big_files(target: &dyn Target, scale: &Scale, round: u64, seed: u64) {
    for piece in 0..20_u64 {
        let chance = mix(seed ^ piece << 8);
        let at = chance % scale.big_bytes;
        let len = (chance >> 32) as usize % 50_000 + 1;
        target.write(b"big/noise", at, &noise(chance, len));
        if piece.is_multiple_of(4) {
            target.write(b"big/words", at, &words(chance, len));
        }
        if piece.is_multiple_of(7) {
            target.sync();
        }
    }
    target.punch(b"big/words", seed % scale.big_bytes, 100_000);
    target.set_len(b"big/zeros", scale.big_bytes / 2 - round * 100_001 % (scale.big_bytes / 2));
    target.write(b"holes/a tebibyte", (1 << 34) + round * 1_000_003, &noise(seed, 12_345));
    target.write(b"holes/allocated ahead", round * 777_777, &noise(seed, 60_000));
    target.write(b"holes/comb", seed % scale.big_bytes, &words(seed, 70_000));
    target.set_len(b"holes/cut", 400_000 - round * 10_001 % 400_000);
    target.allocate(b"holes/punched", 50_000 * round, 200_000, false);
    target.write(b"holes/nothing else", round * 10_000_000 + 1, &words(seed, 10));
}

fn links(target: &dyn Target, scale: &Scale, round: u64) {
    for number in (round..scale.links).step_by(7).take(20) {
        target.remove_file(at!("links/one of a great many names of it {number:05}"));
        target.link(b"links/elsewhere/0", at!("links/round {round} {number}"));
    }
}

fn attributes(target: &dyn Target, round: u64) {
    let many: &[u8] = b"attributes/many";
    target.set_xattr(many, "user.number.7", at!("changed in round {round}"));
    target.set_xattr(many, &format!("user.round.{round}"), &[b'r'; 200]);
    target.remove_xattr(many, &format!("user.number.{}", 40 + round));
    target.set_owner(b"attributes/owned", 1000 + u32::try_from(round).unwrap_or(0), 7);
    target.set_mode(b"attributes/owned", 0o600);
    target.set_times(b"times/1970", i64::try_from(round).unwrap_or(0) * 1_000_000, 17);
}

/// Replaces files as editors do: a new file is made beside the old one and renamed over it.
fn replaced_files(target: &dyn Target, scale: &Scale, round: u64, seed: u64) {
    for dir in 0..scale.dirs {
        let directory = format!("small/d{dir:03}");
        let temporary = format!("{directory}/.new");
        target.make_file(temporary.as_bytes(), 0o640);
        target.write(temporary.as_bytes(), 0, &words(seed ^ dir, 3000));
        target.rename(temporary.as_bytes(), at!("{directory}/replaced"));
        target.make_file(at!("{directory}/appended {round}"), 0o644);
        for line in 0..10 {
            target.write(at!("{directory}/appended {round}"), line * 700, &words(line, 700));
        }
    }
}
