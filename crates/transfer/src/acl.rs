//! Access control lists of archives: text of POSIX, turned into the attributes of Linux.
//!
//! # Text
//!
//! ```text
//! user::rw-
//! user:ada:r-x:1000      a name, and in some archives its number
//! mask::rwx              entries stand on lines, or with commas between them
//! ```
//!
//! # Invariants
//!
//! - **AC1** Names get their numbers from the archive alone, never from the host: the same archive
//!   gives the same bytes on every machine.
//! - **AC2** An entry with an unknown name is left out, and the others stay. So all other users and
//!   groups keep their rights. The user or group of that entry then has the rights of others, which
//!   may be more. The caller tells of each name that was left out.

use std::collections::BTreeMap;

/// The attribute with the list of a file or directory.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the list that new files of a directory get.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHERS: u16 = 32;
/// The number in entries without a name.
const NO_ID: u32 = u32::MAX;
/// The most names that are kept of an archive.
const NAMES_MAX: usize = 1 << 16;

/// The names of owners in an archive, with their numbers.
#[derive(Debug, Default)]
pub(crate) struct Names {
    users: BTreeMap<Vec<u8>, u32>,
    groups: BTreeMap<Vec<u8>, u32>,
}

impl Names {
    /// Keeps the names of the owner and of the group of an entry.
    pub(crate) fn note(&mut self, (user, uid): (&[u8], u32), (group, gid): (&[u8], u32)) {
        for (names, name, number) in [(&mut self.users, user, uid), (&mut self.groups, group, gid)]
        {
            if !name.is_empty() && (names.len() < NAMES_MAX || names.contains_key(name)) {
                names.insert(name.to_vec(), number);
            }
        }
    }
}

/// A list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct List {
    /// The value of the attribute.
    pub(crate) value: Vec<u8>,
    /// The nine permission bits that follow from the list.
    pub(crate) mode: u32,
    /// Whether the list says no more than these bits.
    pub(crate) is_minimal: bool,
    /// Names without a number.
    pub(crate) unknown: Vec<String>,
}

/// The three permission bits that the value of a list gives the owning group. The bits of a mode
/// are the mask of the list.
pub(crate) fn group_of(value: &[u8]) -> u32 {
    let entries = value.get(4..).unwrap_or_default().chunks_exact(8);
    let rights = |wanted: u16| {
        let number = |entry: &[u8], at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let mut found = entries.clone().filter(|entry| number(entry, 0) == wanted);
        found.next().map(|entry| u32::from(number(entry, 2)) & 7)
    };
    rights(OWNING_GROUP).unwrap_or(0) & rights(MASK).unwrap_or(7)
}

/// Reads a list.
///
/// # Errors
///
/// What is wrong with the text.
pub(crate) fn parse(text: &[u8], names: &Names) -> Result<List, String> {
    let mut entries: BTreeMap<(u16, u32), u16> = BTreeMap::new();
    let mut unknown = Vec::new();
    for line in text.split(|byte| matches!(byte, b'\n' | b',')) {
        let line = line.split(|&byte| byte == b'#').next().unwrap_or_default().trim_ascii();
        if line.is_empty() {
            continue;
        }
        let wrong = || format!("{} is no entry of a list", show(line));
        let line = line.strip_prefix(b"default:").unwrap_or(line);
        let mut fields = line.split(|&byte| byte == b':');
        let kind = fields.next().unwrap_or_default();
        let mut name = fields.next().ok_or_else(wrong)?.trim_ascii();
        let mut rights = fields.next();
        let is_single = matches!(kind, b"mask" | b"m" | b"other" | b"o");
        if is_single && rights.is_none() {
            // `mask:rwx` is a short form of `mask::rwx`.
            (name, rights) = (b"", Some(name));
        }
        let rights = permissions(rights.ok_or_else(wrong)?.trim_ascii()).ok_or_else(wrong)?;
        let number = fields.next().and_then(number);
        let (tag, known) = match (kind, name) {
            (b"user" | b"u", b"") => (OWNER, None),
            (b"user" | b"u", _) => (USER, Some(&names.users)),
            (b"group" | b"g", b"") => (OWNING_GROUP, None),
            (b"group" | b"g", _) => (GROUP, Some(&names.groups)),
            (b"mask" | b"m", b"") => (MASK, None),
            (b"other" | b"o", b"") => (OTHERS, None),
            _ => return Err(wrong()),
        };
        let id = match known {
            None => NO_ID,
            Some(known) => {
                let found = number.or_else(|| known.get(name).copied());
                let Some(id) = found.or_else(|| self::number(name)) else {
                    unknown.push(format!("{} {}", show(kind), show(name)));
                    continue;
                };
                id
            }
        };
        if entries.insert((tag, id), rights).is_some() {
            return Err(format!("{} stands there twice", show(line)));
        }
    }
    let of = |tag| entries.get(&(tag, NO_ID)).copied();
    let (Some(owner), Some(group), Some(others)) = (of(OWNER), of(OWNING_GROUP), of(OTHERS)) else {
        return Err("owner, group or others are missing".to_owned());
    };
    let has_names = entries.keys().any(|(tag, _)| matches!(*tag, USER | GROUP));
    if has_names && of(MASK).is_none() {
        return Err("it has names and no mask".to_owned());
    }
    let mode = owner << 6 | of(MASK).unwrap_or(group) << 3 | others;
    let mut value = VERSION.to_le_bytes().to_vec();
    for ((tag, id), rights) in &entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&rights.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(List { value, mode: mode.into(), is_minimal: entries.len() == 3, unknown })
}

fn permissions(text: &[u8]) -> Option<u16> {
    // `X` and other letters are instructions for setfacl, and never stand in an archive.
    text.iter().try_fold(0, |rights, letter| match letter {
        b'r' => Some(rights | 4),
        b'w' => Some(rights | 2),
        b'x' => Some(rights | 1),
        b'-' => Some(rights),
        _ => None,
    })
}

fn number(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number != NO_ID)
}

fn show(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &List) -> Vec<(u16, u16, u32)> {
        let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
        let id = |bytes: &[u8]| u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        list.value[4..].chunks(8).map(|e| (number(e), number(&e[2..]), id(e))).collect()
    }

    fn names() -> Names {
        let mut names = Names::default();
        names.note((b"ada", 1000), (b"staff", 50));
        names
    }

    /// The forms of GNU tar, star and libarchive give the same list, sorted as Linux wants it.
    #[test]
    fn forms_of_one_list() {
        let texts: [&[u8]; 4] = [
            b"user::rw-\nuser:ada:r--\nuser:7:rwx\ngroup::r--\ngroup:staff:r-x\nmask::rwx\nother::---\n",
            b"user::rw-,user:7:rwx,user:ada:r--,group::r--,group:staff:r-x,mask::rwx,other::---",
            b"u::rw,u:grace:r--:1000,u:x:rwx:7,g::r,g:y:rx:50,m:rwx,o:-",
            b"default:user::rw-\ndefault:user:1000:r--\ndefault:user:7:rwx\t#effective:rwx\n\
              default:group::r--\ndefault:group:50:r-x\ndefault:mask::rwx\ndefault:other::---",
        ];
        for text in texts {
            let list = parse(text, &names()).expect("a list");
            let wanted = [
                (1, 6, NO_ID),
                (2, 7, 7),
                (2, 4, 1000),
                (4, 4, NO_ID),
                (8, 5, 50),
                (16, 7, NO_ID),
                (32, 0, NO_ID),
            ];
            assert_eq!(entries(&list), wanted, "{}", show(text));
            assert_eq!((list.mode, list.is_minimal), (0o670, false));
            assert!(list.unknown.is_empty());
        }
        let list = parse(b"user::rw-,group::r--,other::r--", &names()).expect("a list");
        assert_eq!((list.mode, list.is_minimal), (0o644, true));
    }

    /// Only the entry with an unknown name is left out, so the owning group keeps its own rights.
    #[test]
    fn an_unknown_name_is_told() {
        let text = b"user::rwx\nuser:grace:rwx\ngroup::r--\nmask::rwx\nother::---\n";
        let list = parse(text, &names()).expect("a list");
        assert_eq!(list.unknown, ["user grace"]);
        let wanted = [(1, 7, NO_ID), (4, 4, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)];
        assert_eq!(entries(&list), wanted);
        assert!(!list.is_minimal);
    }

    #[test]
    fn invalid_lists_are_refused() {
        for text in [
            &b""[..],
            b"user::rw-,group::r--",
            b"user::rw-,user:7:r--,group::r--,other::---",
            b"user::rw-,user::r--,group::r--,other::---",
            b"user::rwz,group::r--,other::---",
            b"owner@:rwx:allow",
            b"user",
        ] {
            assert!(parse(text, &names()).is_err(), "{}", show(text));
        }
    }
}
