//! A superblock as text, in the words of `btrfs inspect-internal dump-super --full`.

use std::io::{Result, Write};

use buttress_format::{RootBackup, Superblock};
use buttress_volume::Uuid;

use crate::items;

/// Prints one copy.
///
/// `raw` has the bytes of the superblock; the parser has verified their checksum.
pub fn print(device: &str, sb: &Superblock, raw: &[u8], out: &mut impl Write) -> Result<()> {
    writeln!(out, "superblock: bytenr={}, device={device}", sb.bytenr)?;
    writeln!(out, "---------------------------------------------------------")?;
    let metadata_uuid = Uuid(sb.tree_fsid()).to_string();
    let fields: [(&str, String); 32] = [
        ("csum_type", format!("{} ({})", sb.csum_type as u16, sb.csum_type.name())),
        ("csum_size", sb.csum_type.size().to_string()),
        ("csum", format!("0x{} [match]", hex(&raw[..sb.csum_type.size()]))),
        ("bytenr", sb.bytenr.to_string()),
        ("flags", flags(sb.flags, &flag_names(sb.flags))),
        ("magic", "_BHRfS_M [match]".to_owned()),
        ("fsid", Uuid(sb.fsid).to_string()),
        ("metadata_uuid", metadata_uuid),
        ("label", sb.label_text()),
        ("generation", sb.generation.to_string()),
        ("root", sb.root.to_string()),
        ("sys_array_size", sb.sys_array_len().to_string()),
        ("chunk_root_generation", sb.chunk_root_generation.to_string()),
        ("root_level", sb.root_level.to_string()),
        ("chunk_root", sb.chunk_root.to_string()),
        ("chunk_root_level", sb.chunk_root_level.to_string()),
        ("log_root", sb.log_root.to_string()),
        ("log_root_transid (deprecated)", sb.log_root_transid.to_string()),
        ("log_root_level", sb.log_root_level.to_string()),
        ("total_bytes", sb.total_bytes.to_string()),
        ("bytes_used", sb.bytes_used.to_string()),
        ("sectorsize", sb.sectorsize.to_string()),
        ("nodesize", sb.nodesize.to_string()),
        ("leafsize (deprecated)", sb.nodesize.to_string()),
        ("stripesize", sb.stripesize.to_string()),
        ("root_dir", sb.root_dir_objectid.to_string()),
        ("num_devices", sb.num_devices.to_string()),
        ("compat_flags", format!("{:#x}", sb.compat)),
        ("compat_ro_flags", flags(sb.compat_ro.0, &sb.compat_ro.names())),
        ("incompat_flags", flags(sb.incompat.0, &sb.incompat.names())),
        ("cache_generation", sb.cache_generation.to_string()),
        ("uuid_tree_generation", sb.uuid_tree_generation.to_string()),
    ];
    for (name, value) in fields {
        field(name, &value, out)?;
    }
    let item = &sb.dev_item;
    let fsid_verdict = if item.fsid == sb.tree_fsid() { "match" } else { "DON'T MATCH" };
    let device_fields = [
        ("dev_item.uuid", Uuid(item.uuid).to_string()),
        ("dev_item.fsid", format!("{} [{fsid_verdict}]", Uuid(item.fsid))),
        ("dev_item.type", item.kind.to_string()),
        ("dev_item.total_bytes", item.total_bytes.to_string()),
        ("dev_item.bytes_used", item.bytes_used.to_string()),
        ("dev_item.io_align", item.io_align.to_string()),
        ("dev_item.io_width", item.io_width.to_string()),
        ("dev_item.sector_size", item.sector_size.to_string()),
        ("dev_item.devid", item.devid.to_string()),
        ("dev_item.dev_group", item.dev_group.to_string()),
        ("dev_item.seek_speed", item.seek_speed.to_string()),
        ("dev_item.bandwidth", item.bandwidth.to_string()),
        ("dev_item.generation", item.generation.to_string()),
    ];
    for (name, value) in device_fields {
        field(name, &value, out)?;
    }
    writeln!(out, "sys_chunk_array[2048]:")?;
    for (slot, (key, chunk)) in sb.sys_chunks.iter().enumerate() {
        writeln!(out, "\titem {slot} key {}", items::key(key))?;
        for line in items::chunk(chunk) {
            writeln!(out, "\t\t{line}")?;
        }
    }
    writeln!(out, "backup_roots[4]:")?;
    let written = sb.backups.iter().enumerate().filter(|(_, backup)| backup.tree_root.0 != 0);
    for (index, backup) in written {
        print_backup(index, backup, out)?;
    }
    writeln!(out)
}

/// Pads a name with tabs to column 24, where the value begins.
fn field(name: &str, value: &str, out: &mut impl Write) -> Result<()> {
    let tabs = if name.len() < 24 { (24 - name.len()).div_ceil(8) } else { 1 };
    writeln!(out, "{name}{}{value}", "\t".repeat(tabs))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn flag_names(bits: u64) -> Vec<String> {
    let named = [(1_u64, "WRITTEN"), (1 << 32, "SEEDING"), (1 << 33, "METADUMP")];
    let set = named.into_iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| name.to_owned()).collect()
}

fn flags(bits: u64, names: &[String]) -> String {
    if names.is_empty() {
        return format!("{bits:#x}");
    }
    let upper: Vec<String> = names.iter().map(|name| dump_name(name)).collect();
    format!("{bits:#x}\n\t\t\t( {} )", upper.join(" |\n\t\t\t  "))
}

/// A feature as dump-super calls it.
fn dump_name(name: &str) -> String {
    match name {
        "extref" => "EXTENDED_IREF".to_owned(),
        "mixed-bg" => "MIXED_GROUPS".to_owned(),
        "squota" => "SIMPLE_QUOTA".to_owned(),
        _ => name.to_uppercase().replace('-', "_"),
    }
}

fn print_backup(index: usize, backup: &RootBackup, out: &mut impl Write) -> Result<()> {
    writeln!(out, "\tbackup {index}:")?;
    let roots = [
        ("backup_tree_root:\t", backup.tree_root, backup.tree_root_gen, backup.tree_root_level),
        ("backup_chunk_root:\t", backup.chunk_root, backup.chunk_root_gen, backup.chunk_root_level),
        (
            "backup_extent_root:\t",
            backup.extent_root,
            backup.extent_root_gen,
            backup.extent_root_level,
        ),
        ("backup_fs_root:\t\t", backup.fs_root, backup.fs_root_gen, backup.fs_root_level),
        ("backup_dev_root:\t", backup.dev_root, backup.dev_root_gen, backup.dev_root_level),
        ("csum_root:\t", backup.csum_root, backup.csum_root_gen, backup.csum_root_level),
    ];
    for (name, root, generation, level) in roots {
        writeln!(out, "\t\t{name}{root}\tgen: {generation}\tlevel: {level}")?;
    }
    writeln!(out, "\t\tbackup_total_bytes:\t{}", backup.total_bytes)?;
    writeln!(out, "\t\tbackup_bytes_used:\t{}", backup.bytes_used)?;
    writeln!(out, "\t\tbackup_num_devices:\t{}\n", backup.num_devices)
}

/// Prints the older roots of a superblock in the form of `dump-tree -R`.
///
/// # Errors
///
/// Those of writing.
pub fn print_backups(superblock: &Superblock, out: &mut impl Write) -> Result<()> {
    for (slot, backup) in superblock.backups.iter().enumerate() {
        writeln!(out, "btrfs root backup slot {slot}")?;
        let roots = [
            ("tree", backup.tree_root_gen, backup.tree_root),
            ("\textent", backup.extent_root_gen, backup.extent_root),
            ("\tchunk", backup.chunk_root_gen, backup.chunk_root),
            ("\tdevice", backup.dev_root_gen, backup.dev_root),
            ("\tcsum", backup.csum_root_gen, backup.csum_root),
            ("\tfs", backup.fs_root_gen, backup.fs_root),
        ];
        for (name, generation, at) in roots {
            writeln!(out, "\t{name} root gen {generation} block {at}")?;
        }
        let (used, total, devices) = (backup.bytes_used, backup.total_bytes, backup.num_devices);
        writeln!(out, "\t\t{used} used {total} total {devices} devices")?;
    }
    Ok(())
}
