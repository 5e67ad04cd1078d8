//! Changes of a closed volume before a verb: damage that the verb repairs, and file systems that it
//! converts.

use std::error::Error;
use std::process::Command;
use std::sync::Arc;

use buttress_block::{Content, Device, FileDevice, OpenOptions};
use buttress_convert::{Label, Options, convert};
use buttress_format::limits::SUPER_OFFSETS;
use buttress_format::{CsumType, Header, Key, Kind, Superblock, header};
use buttress_fs::MountOptions;
use buttress_volume::Volume;

use super::Done;
use super::bed::Bed;

/// The program that makes an ext4.
pub(super) const MKFS_EXT4: &str = "mkfs.ext4";

/// Alignment of nodes.
const STEP: u64 = 4096;
/// The place of the count of names in an inode item.
const NLINK_AT: usize = 40;

fn opened(bed: &Bed) -> Result<FileDevice, Box<dyn Error>> {
    Ok(FileDevice::open(bed.image(), OpenOptions { write: true, ..OpenOptions::READ })?)
}

/// Erases all copies of the superblock.
pub(super) fn lose_superblocks(bed: &Bed) -> Done {
    let device = opened(bed)?;
    let mut inside = SUPER_OFFSETS.into_iter().filter(|at| at + STEP <= device.len());
    inside.try_for_each(|at| device.write_at(at, &[0; STEP as usize]))?;
    Ok(device.flush()?)
}

/// Erases the second superblock.
pub(super) fn lose_a_superblock(bed: &Bed) -> Done {
    let device = opened(bed)?;
    device.write_at(SUPER_OFFSETS[1], &[0; STEP as usize])?;
    Ok(device.flush()?)
}

/// Erases all copies of the root of the chunk tree.
pub(super) fn lose_chunk_tree(bed: &Bed) -> Done {
    let device = opened(bed)?;
    let superblock = Volume::read_superblock(&device)?;
    let root = superblock.chunk_root;
    let chunks = superblock.sys_chunks.iter().map(|(_, chunk)| chunk);
    for chunk in chunks.filter(|chunk| chunk.logical <= root) {
        let within = root.distance(chunk.logical);
        for stripe in chunk.stripes.iter().filter(|_| within < chunk.len) {
            device.write_at(stripe.offset + within, &vec![0; superblock.nodesize as usize])?;
        }
    }
    Ok(device.flush()?)
}

/// Gives each inode of the top subvolume a wrong count of names.
pub(super) fn miscount_names(bed: &Bed) -> Done {
    let device = opened(bed)?;
    let superblock = Volume::read_superblock(&device)?;
    let nodesize = u64::from(superblock.nodesize);
    let (mut at, mut node) = (0, vec![0; nodesize as usize]);
    while at + nodesize <= device.len() {
        let found = device.extent_at(at, device.len() - at)?;
        if found.content == Content::Hole && found.len >= STEP {
            at += found.len / STEP * STEP;
            continue;
        }
        device.read_at(at, &mut node)?;
        if miscount(&mut node, &superblock) {
            device.write_at(at, &node)?;
        }
        at += STEP;
    }
    Ok(device.flush()?)
}

/// Changes the inode items of a leaf. Returns whether the bytes are such a leaf.
fn miscount(node: &mut [u8], superblock: &Superblock) -> bool {
    const FIRST: u64 = 257;
    let Ok(found) = Header::parse(node) else { return false };
    let is_leaf = found.fsid == superblock.fsid && found.level == 0;
    if !is_leaf || found.owner != buttress_format::TreeId::FS {
        return false;
    }
    for slot in 0..found.nritems as usize {
        let at = header::HEADER_LEN + slot * header::ITEM_LEN;
        let Ok(key) = Key::parse(&node[at..]) else { return false };
        let mut offset = [0; 4];
        offset.copy_from_slice(&node[at + 17..at + 21]);
        let place = header::HEADER_LEN + u32::from_le_bytes(offset) as usize + NLINK_AT;
        if key.kind == Kind::INODE_ITEM
            && key.objectid > FIRST
            && let Some(count) = node.get_mut(place..place + 4)
        {
            count.copy_from_slice(&9_u32.to_le_bytes());
        }
    }
    let digest = superblock.csum_type.digest(&node[32..]);
    node[..32].copy_from_slice(&digest);
    true
}

/// Puts an ext4 with the files of the folder in place of the volume.
pub(super) fn ext4(bed: &Bed) -> Done {
    std::fs::File::create(bed.image())?.set_len(1 << 30)?;
    let mut command = Command::new(MKFS_EXT4);
    command.args(["-q", "-F", "-b", "4096", "-d"]).arg(bed.dir().join("src"));
    let out = command.arg(bed.image()).output()?;
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into()) }
}

/// As [`ext4`], and converts it.
pub(super) fn converted(bed: &Bed) -> Done {
    ext4(bed)?;
    let options = Options {
        label: Label::None,
        has_sums: true,
        csum: CsumType::Crc32c,
        nodesize: 16384,
        mount: MountOptions::default(),
        check_bytes: 64 << 20,
    };
    let device: Arc<dyn Device> = Arc::new(opened(bed)?);
    Ok(convert(device, &options, &mut |_| ()).map(drop)?)
}
