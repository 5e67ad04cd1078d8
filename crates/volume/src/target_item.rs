//! What the superblock of the target of a replacement says.
//!
//! # On disk
//!
//! Commits and logs of fsync write the superblock of a paired target, too. Its device item has the
//! cursor of the copy in `start_offset`: what lies before this place of the device was copied. Then
//! `generation` of the item is that of the superblock. Linux reads neither field, and sets the
//! second to zero. So a cursor that Linux did not keep up to date is not used.

use buttress_format::{DeviceItem, Generation, ReplaceItem, Superblock};

/// Makes the target's superblock from the superblock of a member: with number 0, the target's
/// identifier, and the cursor if there is one.
pub(crate) fn as_target(
    superblock: &Superblock,
    uuid: [u8; 16],
    cursor: Option<u64>,
) -> Superblock {
    let mut own = superblock.clone();
    own.dev_item = item_of_target(&own.dev_item, own.generation, uuid, cursor);
    own
}

fn item_of_target(
    member: &DeviceItem,
    generation: Generation,
    uuid: [u8; 16],
    cursor: Option<u64>,
) -> DeviceItem {
    DeviceItem {
        devid: ReplaceItem::TARGET,
        uuid,
        start_offset: cursor.unwrap_or(0),
        generation: cursor.map(|_| generation).unwrap_or_default(),
        ..*member
    }
}

/// The cursor in the item of a target with a superblock of this generation.
pub(crate) fn cursor_of(item: &DeviceItem, generation: Generation) -> Option<u64> {
    (item.generation == generation).then_some(item.start_offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A superblock that Linux wrote has no cursor, whatever it has in the place of one.
    #[test]
    fn only_a_cursor_of_this_generation_counts() {
        let (member, nine) = (DeviceItem::default(), Generation(9));
        let item = item_of_target(&member, nine, [7; 16], Some(4096));
        assert_eq!((item.devid, item.uuid), (ReplaceItem::TARGET, [7; 16]));
        assert_eq!(cursor_of(&item, nine), Some(4096));
        assert_eq!(cursor_of(&item, Generation(10)), None);
        let linux = DeviceItem { generation: Generation(0), ..item };
        assert_eq!(cursor_of(&linux, nine), None);
        let none = item_of_target(&item, nine, [7; 16], None);
        assert_eq!((cursor_of(&none, nine), none.start_offset), (None, 0));
    }
}
