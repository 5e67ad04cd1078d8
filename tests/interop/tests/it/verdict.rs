//! Our checker compared with `btrfs check`, on volumes that Linux made, with a little damage.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, FileDevice};
use buttress_check::{NoProgress, Options, Report, check_devices, check_image, repair};
use buttress_format::{Key, Kind, RootItem, TreeId};
use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::sample::{Folder, Scale, fill};
use buttress_tree::{Cursor, Expect, Geometry, Node, NodePtr, NodeSource, Store, boot};
use buttress_volume::Volume;

/// The default number of flipped bits. `BUTTRESS_FLIPS` sets another number.
const FLIPS: u64 = 150;

/// A node, and its place in the image.
struct Place {
    tree: TreeId,
    node: Arc<Node>,
    offset: u64,
}

/// Every node of a volume with one copy of each.
fn places(image: &Path) -> Vec<Place> {
    let device: Arc<dyn Device> =
        Arc::new(FileDevice::open(image, buttress_block::OpenOptions::READ).expect("an image"));
    let (volume, superblock) =
        Volume::open(vec![device], buttress_volume::OpenOptions::default()).expect("a volume");
    let volume = Arc::new(volume);
    let geometry = Geometry::of(&superblock);
    let store = Store::new(Arc::clone(&volume), geometry, 32 << 20);
    boot::load_chunks(&store, &superblock).expect("chunks");
    let root = boot::root_tree_root(&superblock);
    let mut roots = vec![(TreeId::CHUNK, boot::chunk_root(&superblock)), (TreeId::ROOT, root)];
    let mut cursor = Cursor::seek(&store, TreeId::ROOT, root, &Key::MIN).expect("roots");
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        if key.kind == Kind::ROOT_ITEM {
            let item = RootItem::parse(item).expect("a root item");
            let ptr =
                NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
            roots.push((TreeId(key.objectid), ptr));
        }
        cursor.advance().expect("roots");
    }
    let mut found = Vec::new();
    for (tree, ptr) in roots {
        let mut waiting = vec![Expect::root(ptr)];
        while let Some(expect) = waiting.pop() {
            let node = store.node(tree, &expect).expect("a node");
            if node.level() > 0 {
                waiting.extend((0..node.len()).map(|slot| node.expect_child(slot)));
            }
            let chunk = volume.chunk_at(node.logical()).expect("a chunk");
            let offset = chunk.stripes[0].offset + node.logical().distance(chunk.logical);
            found.push(Place { tree, node, offset });
        }
    }
    found
}

/// Runs `btrfs check`. Returns whether it finds a fault or does not end, and its output.
fn linux_finds(image: &Path) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.args(["20", "btrfs", "check", "--check-data-csum"]).arg(image);
    let output = command.output().expect("timeout(1)");
    (!output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn we_find(image: &Path) -> (bool, Option<Report>) {
    match check_image(image, &Options::thorough()) {
        Ok(report) => (!report.is_clean(), Some(report)),
        Err(_) => (true, None),
    }
}

/// Faults that only our checker reports: Linux's tool does not look at these faults, but the kernel
/// fails on them.
const STRICTER: &[&str] = &[
    // The kernel looks names up by their hash, and we compare entries and references in full.
    "name-hash",
    "dir-entry-kind",
    "dir-entry-missing",
    "dir-index-missing",
    "dir-item-missing",
    "inode-ref-missing",
    "item-malformed",
    "item-unexpected",
    "item-generation",
    // Linux's tool compares a child that several parents share with only one of the parents.
    "node-damaged",
    "node-bounds",
    "node-owner",
    "node-owner-ref",
    "node-generation",
    "backref-order",
    "extent-mismatch",
    "device-field",
    "default-missing",
    "root-ref-mismatch",
    "root-entry-missing",
    "super-field",
    "super-chunk",
    "chunk-invalid",
    "block-group-mismatch",
    "free-space-count",
    "free-space-info-missing",
    "file-extent-invalid",
    "inode-odd",
    "inode-mode",
    "orphan-missing",
    "verity-damaged",
];

fn make(images: &Images) {
    images.mkfs(&["-m", "single"]);
    let mount = images.mount("");
    let scale = Scale { dirs: 4, files: 15, big_bytes: 1 << 20, links: 400, ..Scale::default() };
    fill(&Folder::new(mount.path()), &scale);
    mount.shell(
        "btrfs -q subvolume create sub; cp -a small links sub/; sync
         btrfs -q subvolume snapshot sub copy; btrfs -q subvolume snapshot -r . whole
         rm -r sub/small/d001; cp --reflink=always big/noise sub/shared; touch copy/links/new",
    );
    mount.unmount();
}

/// Bits are flipped in nodes, half of them with corrected checksums. We find every fault that
/// Linux's tool finds. All further findings are of kinds that the tool does not check.
#[test]
fn agrees_on_flipped_bits() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 256 << 20);
    make(&images);
    let image = images.path();
    images.check();
    let places = places(image);
    let file = OpenOptions::new().read(true).write(true).open(image).expect("an image");
    let flips = std::env::var("BUTTRESS_FLIPS").ok().and_then(|text| text.parse().ok());
    let (mut both, mut neither, mut ours) = (0, 0, 0);
    let mut missed = Vec::new();
    let mut alone = BTreeMap::<&str, u64>::new();
    let mut odd = Vec::new();
    for seed in 0..flips.unwrap_or(FLIPS) {
        let mut rng = Rng::new(seed);
        let place = &places[rng.below(places.len() as u64) as usize];
        let (at, fits) = flip(&file, place, &mut rng);
        let (we, report) = we_find(image);
        let (linux, said) = linux_finds(image);
        file.write_all_at(place.node.bytes(), place.offset).expect("the node as it was");
        let text = || {
            let report = report.as_ref().map_or_else(String::new, Report::to_text);
            let (tree, node) = (place.tree, &place.node);
            format!("seed {seed}, {tree}, byte {at} of {node:?}, sum fits: {fits}\n{report}")
        };
        match (we, linux) {
            (true, true) => both += 1,
            (false, false) => neither += 1,
            (false, true) => missed.push(format!("{}{said}", text())),
            (true, false) => {
                ours += 1;
                let issues = report.iter().flat_map(|report| &report.issues);
                let errors = issues.filter(|i| i.severity() == buttress_check::Severity::Error);
                let codes: BTreeSet<&str> = errors.map(|issue| issue.code()).collect();
                if !codes.iter().any(|code| STRICTER.contains(code)) {
                    odd.push(text());
                }
                for code in codes {
                    *alone.entry(code).or_default() += 1;
                }
            }
        }
    }
    eprintln!("found by us alone: {alone:?}");
    eprintln!("both {both}, neither {neither}, only we {ours}, only Linux {}", missed.len());
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n"));
    let few = usize::try_from(flips.unwrap_or(FLIPS) / 50).expect("a count");
    assert!(odd.len() <= few, "{} found by us alone:\n{}", odd.len(), odd.join("\n"));
    // The image is as before, so no flip is left.
    images.check();
}

/// If a node has the flag of a balance and its extent item has not, our checker reports the node if
/// Linux's tool does.
#[test]
fn agrees_on_nodes_of_a_balance() {
    if !has_linux_btrfs() {
        return;
    }
    const FLAGS: usize = 56;
    const RELOC: u8 = 1 << 1;
    let images = Images::new(1, 256 << 20);
    make(&images);
    let image = images.path();
    let places = places(image);
    let file = OpenOptions::new().read(true).write(true).open(image).expect("an image");
    let mut of_trees = BTreeMap::<TreeId, u32>::new();
    let mut found = 0;
    for place in &places {
        let seen = of_trees.entry(place.tree).or_default();
        *seen += 1;
        if *seen > 6 {
            continue;
        }
        let mut bytes = place.node.bytes().to_vec();
        bytes[FLAGS] |= RELOC;
        seal(&mut bytes);
        file.write_all_at(&bytes, place.offset).expect("a flag");
        let (we, linux) = (we_find(image).0, linux_finds(image));
        file.write_all_at(place.node.bytes(), place.offset).expect("the node as it was");
        let (tree, node) = (place.tree, &place.node);
        assert!(we || !linux.0, "{tree}, {node:?}: {}", linux.1);
        found += u32::from(linux.0);
    }
    assert!(found > 10, "Linux finds {found} of them");
    images.check();
}

/// Corrects the checksum of a node.
fn seal(bytes: &mut [u8]) {
    let digest = buttress_format::CsumType::Crc32c.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
}

/// Flips a bit in the used bytes of a node. Half of the time, corrects the checksum. Returns the
/// byte, and whether the checksum was corrected.
fn flip(file: &File, place: &Place, rng: &mut Rng) -> (u64, bool) {
    let mut bytes = place.node.bytes().to_vec();
    let table = if place.node.level() == 0 { 25 } else { 33 } * place.node.len() as u64;
    let used = if place.node.level() == 0 { place.node.used_bytes() as u64 - table } else { 0 };
    let pick = rng.below(69 + table + used);
    let at =
        if pick < 69 + table { 32 + pick } else { bytes.len() as u64 - 1 - (pick - 69 - table) };
    bytes[at as usize] ^= 1 << rng.below(8);
    let fits = rng.chance(9, 10);
    if fits {
        seal(&mut bytes);
    }
    file.write_all_at(&bytes, place.offset).expect("a flip");
    (at, fits)
}

/// Little memory and many threads give the same report as much memory and one thread.
#[test]
fn memory_and_threads_do_not_show() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 256 << 20);
    make(&images);
    let report = |memory_bytes, threads| {
        let options = Options { memory_bytes, threads: Some(threads), ..Options::thorough() };
        let device: Arc<dyn Device> = Arc::new(
            FileDevice::open(images.path(), buttress_block::OpenOptions::READ).expect("an image"),
        );
        check_devices(vec![device], &options, &NoProgress).expect("a check")
    };
    let (small, large) = (report(1, 4), report(1 << 30, 1));
    assert!(small.is_clean(), "{}", small.to_text());
    assert_eq!(small.totals, large.totals);
}

/// `btrfs check` finds no fault on volumes that we repaired, and Linux mounts and uses them.
#[test]
fn linux_accepts_repairs() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 256 << 20);
    make(&images);
    let image = images.path();
    let whole = std::fs::read(image).expect("the image");
    let places = places(image);
    let mend = || {
        let options = buttress_block::OpenOptions::WRITE;
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, options).expect("alone"));
        let report = check_image_of(&device);
        assert!(!report.is_clean(), "nothing to repair");
        let repairs = repair(&[Arc::clone(&device)], &report).expect("a repair");
        assert!(repairs.left.is_empty() && !repairs.done.is_empty(), "{repairs:?}");
        let report = check_image_of(&device);
        assert!(report.is_clean(), "{}", report.to_text());
    };
    let edit = |tree: TreeId, kind: Kind, change: &dyn Fn(&mut [u8])| {
        let file = OpenOptions::new().write(true).open(image).expect("an image");
        let leaves = places.iter().filter(|place| place.tree == tree && place.node.level() == 0);
        for place in leaves {
            let mut bytes = place.node.bytes().to_vec();
            for slot in (0..place.node.len()).filter(|slot| place.node.key(*slot).kind == kind) {
                let item = place.node.item(slot);
                let start = item.as_ptr() as usize - place.node.bytes().as_ptr() as usize;
                change(&mut bytes[start..start + item.len()]);
            }
            seal(&mut bytes);
            file.write_all_at(&bytes, place.offset).expect("an edit");
        }
    };
    let works_in_linux = || {
        let mount = images.mount("");
        mount.shell("cp -a big again; sync; cat big/noise > /dev/null");
        mount.btrfs("scrub start -B");
        mount.unmount();
        images.check();
    };

    // The first superblock is gone.
    let file = OpenOptions::new().write(true).open(image).expect("an image");
    file.write_all_at(b"damage", (64 << 10) + 200).expect("damage");
    mend();
    images.check();
    works_in_linux();

    // The items of block groups have wrong values.
    std::fs::write(image, &whole).expect("the image as it was");
    edit(TreeId::EXTENT, Kind::BLOCK_GROUP_ITEM, &|item| item[1] ^= 0x10);
    assert!(linux_finds(image).0);
    mend();
    images.check();
    works_in_linux();

    // The next mount rebuilds the records of free space.
    std::fs::write(image, &whole).expect("the image as it was");
    edit(TreeId::FREE_SPACE, Kind::FREE_SPACE_INFO, &|item| item[0] ^= 1);
    assert!(linux_finds(image).0);
    mend();
    works_in_linux();
    let report = check_image(image, &Options::default()).expect("a check");
    assert!(!report.has("free-space-invalid"), "Linux made it anew");
}

fn check_image_of(device: &Arc<dyn Device>) -> Report {
    check_devices(vec![Arc::clone(device)], &Options::default(), &NoProgress).expect("a check")
}
