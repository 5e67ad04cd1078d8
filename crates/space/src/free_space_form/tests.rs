//! B1 and B2, and one test for each way in which items can be wrong.

use buttress_base::Rng;

use super::*;

const SECTOR: u32 = 4096;
const MIB: u64 = 1 << 20;

fn group(start: u64, len: u64) -> Extent {
    Extent { start: Logical(start), len }
}

/// Random free extents: runs of up to `run_max` sectors, with gaps of up to `run_max` sectors.
fn free_by_chance(rng: &mut Rng, group: Extent, sectorsize: u32, run_max: u64) -> Vec<Extent> {
    let sector = u64::from(sectorsize);
    let mut at = group.start.0 + rng.below(run_max) * sector;
    let mut free = Vec::new();
    while at < group.end().0 {
        let len = (rng.range(1..run_max + 1) * sector).min(group.end().0 - at);
        free.push(Extent { start: Logical(at), len });
        at += len + rng.range(1..run_max + 1) * sector;
    }
    free
}

fn parse_items(
    group: Extent,
    sectorsize: u32,
    form: Form,
    count: usize,
    items: &[FormItem],
) -> Result<Vec<Extent>, FormError> {
    let items = items.iter().map(|item| (item.key, item.payload.as_slice()));
    parse(group, sectorsize, &form.info(count as u32), items)
}

/// B1 holds for both forms, for groups of odd sizes, and for extents from single sectors to many
/// bitmaps.
#[test]
fn reads_back_what_it_wrote() {
    let mut rng = Rng::new(1);
    for sectorsize in [4096, 16384, 65536] {
        for (round, run_max) in [1, 3, 17, 5000].into_iter().cycle().take(40).enumerate() {
            let sector = u64::from(sectorsize);
            let group = group(rng.below(1 << 40) * sector, rng.range(1..9000) * sector);
            let free = free_by_chance(&mut rng, group, sectorsize, run_max);
            for form in [Form::Extents, Form::Bitmaps] {
                let items = write(group, sectorsize, form, &free);
                assert!(items.is_sorted_by(|a, b| a.key < b.key));
                let back = parse_items(group, sectorsize, form, free.len(), &items);
                assert_eq!(back.as_ref(), Ok(&free), "round {round}, {form:?}, {group:?}");
            }
        }
    }
}

/// The layout of the format, byte by byte, for a group of one full bitmap and a short one.
#[test]
fn bitmaps_lie_as_the_format_says() {
    let group = group(MIB, 8 * MIB + 11 * 4096);
    let free = [
        Extent { start: Logical(MIB), len: 4096 },
        Extent { start: Logical(MIB + 7 * 4096), len: 2 * 4096 },
        Extent { start: Logical(MIB + 2047 * 4096), len: 3 * 4096 },
        Extent { start: Logical(MIB + 2058 * 4096), len: 4096 },
    ];
    let items = write(group, SECTOR, Form::Bitmaps, &free);
    let [first, second] = items.as_slice() else { panic!("two bitmaps, not {}", items.len()) };
    assert_eq!(first.key, Key::new(MIB, Kind::FREE_SPACE_BITMAP, 8 * MIB));
    assert_eq!(first.payload.len(), 256);
    assert_eq!((first.payload[0], first.payload[1], first.payload[255]), (0x81, 0x01, 0x80));
    assert_eq!(second.key, Key::new(9 * MIB, Kind::FREE_SPACE_BITMAP, 11 * 4096));
    assert_eq!(second.payload, [0x03, 0x04]);
}

/// The thresholds of a group of 1 GiB, and of a group that is too small to have a lower threshold.
#[test]
fn thresholds_are_the_formats() {
    assert_eq!(bitmap_count(1 << 30, SECTOR), 128);
    assert_eq!(upper_threshold(1 << 30, SECTOR), 1438);
    assert_eq!(lower_threshold(1 << 30, SECTOR), 1338);
    assert_eq!((upper_threshold(8 * MIB, SECTOR), lower_threshold(8 * MIB, SECTOR)), (11, 0));
}

/// Tests A5.
/// B2: a group changes to bitmaps above the upper threshold, changes back below the lower one, and
/// keeps its form between them.
#[test]
fn form_converts_with_hysteresis() {
    let next = |form, count| next_form(form, count, 1 << 30, SECTOR);
    assert_eq!(next(Form::Extents, 1438), Form::Extents);
    assert_eq!(next(Form::Extents, 1439), Form::Bitmaps);
    assert_eq!(next(Form::Bitmaps, 1338), Form::Bitmaps);
    assert_eq!(next(Form::Bitmaps, 1337), Form::Extents);
    assert_eq!(next_form(Form::Bitmaps, 0, 8 * MIB, SECTOR), Form::Bitmaps);
    for form in [Form::Extents, Form::Bitmaps] {
        assert_eq!(Form::of(&form.info(0)), form);
    }
}

/// Each kind of wrong extent item has an error of its own.
#[test]
fn refuses_bad_extents() {
    let group = group(MIB, MIB);
    let item = |start, len| (Key::new(start, Kind::FREE_SPACE_EXTENT, len), [].as_slice());
    let read = |items: Vec<(Key, &'static [u8])>| {
        let count = items.len() as u32;
        parse(group, SECTOR, &Form::Extents.info(count), items)
    };
    let outside = |found| matches!(found, Err(FormError::Outside { .. }));
    assert!(outside(read(vec![item(0, 4096)])));
    assert!(outside(read(vec![item(2 * MIB - 4096, 8192)])));
    assert!(outside(read(vec![item(MIB, u64::MAX)])));
    assert!(outside(read(vec![item(MIB, 0)])));
    assert!(matches!(read(vec![item(MIB + 1, 4096)]), Err(FormError::Unaligned { .. })));
    let twice = vec![item(MIB, 8192), item(MIB + 4096, 4096)];
    assert!(matches!(read(twice), Err(FormError::Disorder { .. })));
    let bitmap = (Key::new(MIB, Kind::FREE_SPACE_BITMAP, MIB), [].as_slice());
    assert!(matches!(read(vec![bitmap]), Err(FormError::Kind { .. })));
    let full = (Key::new(MIB, Kind::FREE_SPACE_EXTENT, 4096), [1_u8].as_slice());
    assert!(matches!(read(vec![full]), Err(FormError::Payload { expected: 0, found: 1, .. })));
    let counted = parse(group, SECTOR, &Form::Extents.info(2), [item(MIB, 4096)]);
    assert!(matches!(counted, Err(FormError::Count { expected: 2, found: 1, .. })));
}

/// Each kind of wrong bitmap has an error of its own.
#[test]
fn refuses_bad_bitmaps() {
    let group = group(MIB, 9 * MIB);
    let sound = write(group, SECTOR, Form::Bitmaps, &[group]);
    let read = |items: &[FormItem]| parse_items(group, SECTOR, Form::Bitmaps, 1, items);
    assert_eq!(read(&sound), Ok(vec![group]));
    assert!(
        matches!(read(&sound[..1]), Err(FormError::BitmapsEnd { end: Logical(e), .. }) if e == 9 * MIB)
    );
    assert!(matches!(read(&sound[1..]), Err(FormError::Bitmap { .. })));
    let mut short = sound.clone();
    short[1].payload.pop();
    assert!(matches!(read(&short), Err(FormError::Payload { expected: 32, found: 31, .. })));
    let mut third = sound.clone();
    third.push(sound[1].clone());
    assert!(matches!(read(&third), Err(FormError::Outside { .. })));
    let mut extent = sound.clone();
    extent[0].key.kind = Kind::FREE_SPACE_EXTENT;
    assert!(matches!(read(&extent), Err(FormError::Kind { .. })));
    let mut hole = sound;
    hole[0].payload[3] = 0xfe;
    assert!(matches!(read(&hole), Err(FormError::Count { expected: 1, found: 2, .. })));
}

/// Bits past the end of the group are ignored.
#[test]
fn ignores_bits_past_the_end() {
    let group = group(0, 3 * 4096);
    let key = Key::new(0, Kind::FREE_SPACE_BITMAP, 3 * 4096);
    let free = parse(group, SECTOR, &Form::Bitmaps.info(1), [(key, [0xfe_u8].as_slice())]);
    assert_eq!(free, Ok(vec![Extent { start: Logical(4096), len: 2 * 4096 }]));
}
