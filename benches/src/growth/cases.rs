//! The list of cases: a line for each. A new operation or verb gets a line here.

use super::bed::nothing;
use super::damage as d;
use super::names::{fill, fill_files, links, xattrs};
use super::shared::{
    counted, home, home_and_snapshots, many_files_and_snapshots, snapshots, subvolumes,
};
use super::verbs::{deleted_files, files_and_device, files_on_two, folder, read_only, stream};
use super::{
    Case, Shape, contents as c, each, facade as f, mount, mounted as m, names as n, one,
    shared as s, verb, whole as w,
};

const NAMES: &str = "names of a directory";
const DEPTH: &str = "depth";
const LINKS: &str = "names of an inode";
const XATTRS: &str = "xattrs of an inode";
const EXTENTS: &str = "extents of a file";
const REFS: &str = "references of an extent";
const SUBVOLUMES: &str = "subvolumes";
const SNAPSHOTS: &str = "snapshots";
const FILES: &str = "files";
const GROUPS: &str = "block groups";
const SIZE: &str = "size of the volume";
const DEVICES: &str = "devices";

const ONE_ITEM: &str = "the first 700 names share one item, each of the others has its own";

const LEAF_EACH: &str = "references of one extent come to fill a leaf of their own";
const TWO_LEVELS: &str = "a log of some hundred extents has a second level";
const FIRST_LEAVES: &str = "small trees are rewritten whole; from 8192 on the exponent is 0.15";
const SECOND_LEVEL: &str = "the trees of groups and free space get a second level";
const ROOT_ITEMS: &str =
    "opening reads the item of each subvolume, since shared nodes need room for copies";

const EACH: Shape = Shape::Each;
const ONE: Shape = Shape::One;

#[rustfmt::skip]
const LIBRARY: &[Case] = &[
    each("create", NAMES, 256, nothing, fill),
    each("mkdir", NAMES, 256, nothing, n::mkdir),
    each("symlink", NAMES, 256, nothing, n::symlink),
    each("read_link", NAMES, 256, n::symlink, n::read_links),
    each("tmpfile", NAMES, 256, nothing, n::tmpfile),
    each("lookup and stat", NAMES, 256, fill, n::lookup),
    each("set_attr", NAMES, 256, fill, n::set_attr),
    each("read_dir", NAMES, 256, fill, n::list),
    each("unlink", NAMES, 256, fill, n::unlink),
    each("rmdir", NAMES, 256, n::mkdir, n::rmdir),
    each("list and unlink", NAMES, 256, fill, n::list_and_unlink),
    each("rename", NAMES, 256, fill, n::rename),
    each("rename, exchange", NAMES, 256, fill, n::exchange),
    each("rename, whiteout", NAMES, 256, fill, n::whiteout),
    each("change_names", NAMES, 64, fill, n::change_names),
    each("transaction", NAMES, 64, nothing, n::transaction),
    each("create and fsync", NAMES, 64, nothing, n::create_and_sync),
    one("a few names", NAMES, 256, fill, n::few_names),
    each("write, facade", FILES, 256, nothing, n::write_files),
    each("copy, facade", FILES, 64, fill_files, n::copy_files),
    each("read_dir and read, facade", FILES, 256, fill_files, n::walk),
    each("snapshot and read, facade", FILES, 256, fill_files, n::snapshot_and_walk),
    each("calls by path, facade", FILES, 64, fill_files, f::by_path),
    each("calls of a file, facade", FILES, 64, fill_files, f::by_file),
    each("calls of a snapshot, facade", FILES, 256, fill_files, f::in_snapshot),
    each("calls of a transaction, facade", FILES, 64, fill_files, f::in_transaction),
    each("remove_dir_all, wide", FILES, 256, fill_files, n::remove_dir_all),
    each("mkdir", DEPTH, 32, nothing, n::deepen),
    each("resolve", DEPTH, 32, n::deepen, n::resolve),
    each("parent", DEPTH, 32, n::deepen, n::walk_up),
    each("rename to the deepest", DEPTH, 32, n::deepen, n::move_deep),
    each("create_dir_all", DEPTH, 16, nothing, n::create_dir_all),
    each("remove_dir_all", DEPTH, 32, n::deepen, n::remove_dir_all),
    each("link", LINKS, 128, nothing, n::link).because(1.2, ONE_ITEM),
    each("link and fsync", LINKS, 128, links, n::link_and_sync).because(1.45, ONE_ITEM),
    each("places", LINKS, 128, links, n::places).because(1.75, ONE_ITEM),
    each("unlink", LINKS, 128, links, n::unlink),
    each("rename", LINKS, 128, links, n::rename),
    one("a few names", LINKS, 128, links, n::few_links).because(0.55, ONE_ITEM),
    each("set_xattr", XATTRS, 128, nothing, xattrs),
    each("set_xattr and fsync", XATTRS, 128, xattrs, n::mark_and_sync),
    each("set_xattr, replace", XATTRS, 128, xattrs, n::replace_xattrs),
    each("remove_xattr", XATTRS, 128, xattrs, n::remove_xattrs),
    each("list_xattrs", XATTRS, 128, xattrs, n::list_xattrs),
    one("a few xattrs", XATTRS, 128, xattrs, n::few_xattrs).because(0.55, FIRST_LEAVES),
    each("write_at", EXTENTS, 128, nothing, c::write_new),
    each("write_direct", EXTENTS, 128, nothing, c::write_direct),
    each("append and fsync", EXTENTS, 32, nothing, c::append_and_sync).because(1.3, TWO_LEVELS),
    each("read_at", EXTENTS, 128, c::scattered, c::read_all),
    each("read_direct", EXTENTS, 128, c::scattered, c::read_each),
    each("overwrite", EXTENTS, 128, c::scattered, c::overwrite),
    each("write and fsync", EXTENTS, 128, nothing, c::write_and_sync),
    each("set_attr, cut to nothing", EXTENTS, 128, c::scattered, c::cut),
    each("set_attr, cut by steps", EXTENTS, 128, c::scattered, c::cut_by_steps),
    each("unlink", EXTENTS, 128, c::scattered, c::remove),
    each("fallocate, punch all", EXTENTS, 128, c::scattered, c::punch_all),
    each("fallocate, punch each", EXTENTS, 128, c::scattered, c::punch_each),
    each("fallocate, allocate holes", EXTENTS, 128, c::scattered, c::allocate_all),
    each("fallocate, zero", EXTENTS, 128, c::scattered, c::zero_all),
    each("seek_data, seek_hole", EXTENTS, 128, c::scattered, c::seek_all),
    each("clone_range", EXTENTS, 128, c::scattered, c::clone_all),
    each("dedupe_range", EXTENTS, 128, c::scattered_twice, c::dedupe_all),
    each("copy_range", EXTENTS, 128, c::scattered, c::copy_all),
    each("defragment", EXTENTS, 128, c::scattered, c::defragment),
    each("enable_verity and read", EXTENTS, 128, f::long_file, f::enable_verity),
    one("a few changes", EXTENTS, 128, c::scattered, c::few_extents),
    each("clone_range", REFS, 128, c::one_sector, c::clones),
    each("clone_range and fsync", REFS, 128, c::one_sector, c::clones_and_sync),
    each("overwrite", REFS, 128, c::shared, c::overwrite),
    each("unlink", REFS, 128, c::shared, c::remove),
    each("fallocate, punch each", REFS, 128, c::shared, c::punch_each),
    each("balance", REFS, 64, c::shared, w::balance),
    one("a few changes", REFS, 128, c::shared, c::few_references),
    each("create_subvolume", SUBVOLUMES, 64, nothing, subvolumes),
    each("delete_subvolume", SUBVOLUMES, 64, subvolumes, s::delete_subvolumes),
    each("subvolumes", SUBVOLUMES, 64, subvolumes, s::list_subvolumes),
    one("a few files and commits", SUBVOLUMES, 64, subvolumes, w::few_files),
    each("snapshot and write", SNAPSHOTS, 4, home, snapshots).because(1.35, LEAF_EACH),
    each("delete_subvolume, all", SNAPSHOTS, 4, home_and_snapshots, s::delete_snapshots),
    each("delete_subvolume, each", SNAPSHOTS, 4, home_and_snapshots, s::delete_each_snapshot).because(1.35, LEAF_EACH),
    each("subvolumes", SNAPSHOTS, 4, home_and_snapshots, s::list_subvolumes),
    each("balance", SNAPSHOTS, 4, home_and_snapshots, w::balance),
    each("scrub", SNAPSHOTS, 4, home_and_snapshots, w::scrub),
    one("a few writes", SNAPSHOTS, 4, home_and_snapshots, s::few_writes),
    one("a few snapshots", SNAPSHOTS, 4, home_and_snapshots, s::few_snapshots),
    each("balance, 4 snapshots", FILES, 64, many_files_and_snapshots, w::balance),
    each("scrub", FILES, 64, fill_files, w::scrub),
    each("trim", FILES, 64, fill_files, w::trim),
    one("a few files and commits", GROUPS, 8, w::groups, w::few_files).because(0.35, SECOND_LEVEL),
    each("trim", GROUPS, 8, w::groups, w::trim),
    each("balance, nothing to do", GROUPS, 8, w::groups, w::balance_none),
    each("usage and info", GROUPS, 8, w::groups, w::ask),
    one("a few files and commits", SIZE, 16, w::size, w::few_files),
    one("usage and info", SIZE, 16, w::size, w::ask),
    one("scrub", SIZE, 16, w::size, w::scrub),
    each("a few files and commits", DEVICES, 1, w::devices, w::few_files),
    each("usage and info", DEVICES, 1, w::devices, w::ask),
    each("remove_device", DEVICES, 1, w::devices, w::remove_device),
];

#[rustfmt::skip]
const VERBS: &[Case] = &[
    verb("mkfs DIR/new --size 4G --rootdir DIR/src", FILES, 128, EACH, folder),
    verb("check IMG", FILES, 128, EACH, fill_files),
    verb("check IMG --check-data-csum", FILES, 128, EACH, fill_files),
    verb("check IMG", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("check IMG --device DIR/img1", GROUPS, 8, EACH, w::groups),
    verb("check IMG", REFS, 128, EACH, c::shared),
    verb("check IMG", EXTENTS, 128, EACH, c::scattered),
    verb("ls --long IMG:/src", FILES, 128, EACH, fill_files),
    verb("tree IMG", FILES, 128, EACH, fill_files),
    verb("cp -a DIR/src IMG:/", FILES, 128, EACH, folder),
    verb("cp -a IMG:/src DIR/out", FILES, 128, EACH, fill_files),
    verb("cp -a IMG:/src IMG:/copy", FILES, 128, EACH, fill_files),
    verb("rm -r IMG:/src", FILES, 128, EACH, fill_files),
    verb("mv IMG:/src IMG:/moved", FILES, 128, ONE, fill_files),
    verb("stat IMG:/src/name-00000001", FILES, 128, ONE, fill_files),
    verb("cat IMG:/src/name-00000001", FILES, 128, ONE, fill_files),
    verb("ln IMG:/src/name-00000001 IMG:/link", FILES, 128, ONE, fill_files),
    verb("mkdir IMG:/src/new", FILES, 128, ONE, fill_files),
    verb("property get IMG:/src/name-00000001", FILES, 128, ONE, fill_files),
    verb("df IMG", FILES, 128, ONE, fill_files),
    verb("info IMG", FILES, 128, ONE, fill_files),
    verb("info IMG", SUBVOLUMES, 64, EACH, subvolumes),
    verb("df IMG --device DIR/img1", GROUPS, 8, EACH, w::groups),
    verb("info IMG --device DIR/img1", GROUPS, 8, EACH, w::groups),
    verb("dump IMG", FILES, 128, EACH, fill_files),
    verb("scrub start IMG", FILES, 128, EACH, fill_files),
    verb("balance start IMG", FILES, 64, EACH, fill_files),
    verb("balance start IMG", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("fstrim IMG", FILES, 128, EACH, fill_files),
    verb("send IMG:/snap -f DIR/sent", FILES, 128, EACH, read_only),
    verb("receive IMG:/there -f DIR/stream", FILES, 128, EACH, stream),
    verb("subvolume list IMG", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("subvolume snapshot IMG:/home IMG:/more", SNAPSHOTS, 4, ONE, home_and_snapshots).because(0.45, ROOT_ITEMS),
    verb("subvolume delete IMG:/snap-00000000", SNAPSHOTS, 4, ONE, home_and_snapshots).because(0.45, ROOT_ITEMS),
    verb("filesystem defragment -r IMG:/src", FILES, 128, EACH, fill_files),
    verb("filesystem defragment IMG:/scattered", EXTENTS, 128, EACH, c::scattered),
    verb("filesystem resize -1G IMG", FILES, 128, ONE, fill_files),
    verb("device add IMG DIR/img1", FILES, 128, ONE, files_and_device),
    verb("device replace IMG 1 DIR/img1", FILES, 128, EACH, files_and_device),
    verb("device stats IMG", FILES, 128, ONE, fill_files),
    verb("device remove --device DIR/img1 IMG 2", FILES, 128, EACH, files_on_two),
    verb("filesystem label IMG new", FILES, 128, ONE, fill_files),
    verb("property set IMG:/src/name-00000001 compression zstd", FILES, 128, ONE, fill_files),
    verb("property list IMG:/src/name-00000001", FILES, 128, ONE, fill_files),
    verb("fsverity enable IMG:/long", EXTENTS, 128, EACH, f::long_file),
    verb("fsverity digest IMG:/long", EXTENTS, 128, EACH, f::long_file),
    verb("subvolume create IMG:/more", SUBVOLUMES, 64, ONE, subvolumes).because(0.75, ROOT_ITEMS),
    verb("subvolume show IMG:/sub-00000001", SUBVOLUMES, 64, EACH, subvolumes),
    verb("subvolume get-default IMG", SUBVOLUMES, 64, ONE, subvolumes),
    verb("subvolume set-default IMG:/sub-00000001", SUBVOLUMES, 64, ONE, subvolumes).because(0.75, ROOT_ITEMS),
    verb("du IMG:/src", FILES, 128, EACH, fill_files),
    verb("du --summarize IMG:/", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("du IMG:/scattered", EXTENTS, 128, EACH, c::scattered),
    verb("compsize IMG:/src", FILES, 128, EACH, fill_files),
    verb("compsize IMG:/", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("compsize IMG:/scattered", EXTENTS, 128, EACH, c::scattered),
    verb("map IMG --output DIR/map.html", FILES, 128, EACH, fill_files),
    verb("map IMG --output DIR/map.html", EXTENTS, 128, EACH, c::scattered),
    verb("map IMG --device DIR/img1 --output DIR/map.html", GROUPS, 8, EACH, w::groups),
    verb("quota enable IMG:/", FILES, 128, EACH, fill_files),
    verb("quota enable IMG:/", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("quota rescan IMG:/", SUBVOLUMES, 16, EACH, counted),
    verb("qgroup show IMG:/", SUBVOLUMES, 16, EACH, counted),
    verb("qgroup create 1/1 IMG:/", SUBVOLUMES, 16, EACH, counted),
    verb("qgroup limit 1G IMG:/sub-00000001", SUBVOLUMES, 16, EACH, counted),
    verb("restore IMG DIR/out", FILES, 128, EACH, fill_files),
    verb("restore IMG DIR/out", EXTENTS, 128, EACH, c::scattered),
    verb("restore --snapshots --dry-run IMG", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("restore --dry-run IMG", FILES, 128, EACH, fill_files).after(d::lose_superblocks),
    verb("undelete IMG", FILES, 128, EACH, deleted_files),
    verb("undelete --to DIR/out IMG", FILES, 128, EACH, deleted_files),
    verb("rescue super-recover --yes IMG", FILES, 128, ONE, fill_files).after(d::lose_a_superblock),
    verb("rescue zero-log --yes IMG", FILES, 128, ONE, fill_files),
    verb("rescue fix-device-size --yes IMG", FILES, 128, ONE, fill_files),
    verb("rescue clear-space-cache --yes v2 IMG", FILES, 128, ONE, fill_files),
    verb("rescue chunk-recover --yes IMG", FILES, 128, EACH, fill_files).after(d::lose_chunk_tree),
    verb("rescue clear-uuid-tree --yes IMG", SUBVOLUMES, 64, EACH, subvolumes),
    verb("convert IMG", FILES, 128, EACH, folder).after(d::ext4),
    verb("convert --rollback IMG", FILES, 128, EACH, folder).after(d::converted),
    verb("check --repair IMG", FILES, 128, EACH, fill_files).after(d::miscount_names),
    verb("check --repair --init-extent-tree IMG", FILES, 128, EACH, fill_files),
    verb("check --repair --init-extent-tree IMG", SNAPSHOTS, 4, EACH, home_and_snapshots),
    verb("check --repair --init-extent-tree IMG", REFS, 128, EACH, c::shared),
    verb("check --repair --init-csum-tree IMG", EXTENTS, 128, EACH, c::scattered),
];

#[rustfmt::skip]
const MOUNTS: &[Case] = &[
    mount("create, mounted", NAMES, 128, EACH, nothing, m::create),
    mount("create and fsync, mounted", NAMES, 128, EACH, nothing, m::create_and_sync),
    mount("stat, mounted", NAMES, 128, EACH, fill_files, m::stat),
    mount("readdir, mounted", NAMES, 128, EACH, fill_files, m::list),
    mount("rename, mounted", NAMES, 128, EACH, fill_files, m::rename),
    mount("setattr, mounted", NAMES, 128, EACH, fill_files, m::set_mode),
    mount("getxattr, mounted", NAMES, 128, EACH, fill_files, m::get_xattr),
    mount("open, read, close, mounted", NAMES, 128, EACH, fill_files, m::read),
    mount("unlink, mounted", NAMES, 128, EACH, fill_files, m::unlink),
    mount("a few names, mounted", NAMES, 256, ONE, fill_files, m::few_names),
    mount("snapshot, mounted", SNAPSHOTS, 4, EACH, home, m::snapshots).because(1.3, LEAF_EACH),
    mount("a few snapshots, mounted", SNAPSHOTS, 4, ONE, home_and_snapshots, m::few_snapshots),
];

/// The same cases with requests by io_uring.
#[rustfmt::skip]
const RINGS: &[Case] = &[
    MOUNTS[0].by_ring("create, mounted by io_uring"),
    MOUNTS[1].by_ring("create and fsync, mounted by io_uring"),
    MOUNTS[2].by_ring("stat, mounted by io_uring"),
    MOUNTS[3].by_ring("readdir, mounted by io_uring"),
    MOUNTS[4].by_ring("rename, mounted by io_uring"),
    MOUNTS[5].by_ring("setattr, mounted by io_uring"),
    MOUNTS[6].by_ring("getxattr, mounted by io_uring"),
    MOUNTS[7].by_ring("open, read, close, mounted by io_uring"),
    MOUNTS[8].by_ring("unlink, mounted by io_uring"),
    MOUNTS[9].by_ring("a few names, mounted by io_uring"),
    MOUNTS[10].by_ring("snapshot, mounted by io_uring"),
    MOUNTS[11].by_ring("a few snapshots, mounted by io_uring"),
];

/// Every case.
pub fn all() -> impl Iterator<Item = Case> {
    LIBRARY.iter().chain(MOUNTS).chain(RINGS).chain(VERBS).copied()
}
