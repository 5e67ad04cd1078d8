//! How profiles spread the bytes of a block group over devices, and how many devices each profile
//! requires.
//!
//! The format fixes these figures, and Linux allocates by them, too.

use std::fmt;

use crate::BlockGroupFlags;

/// A profile that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum Profile {
    Single,
    Dup,
    Raid0,
    Raid1,
    Raid10,
    Raid1c3,
    Raid1c4,
    Raid5,
    Raid6,
}

/// The requirements of a profile on the devices of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Stripes on each device.
    pub per_device: usize,
    /// Fewest devices.
    pub least: usize,
    /// Most devices; `None` for all available devices.
    pub most: Option<usize>,
    /// The number of devices is a multiple of this.
    pub step: usize,
    /// Whole copies of each byte.
    pub copies: usize,
    /// Stripes of each row that hold parity.
    pub parity: usize,
    /// Devices that may be lost without losing a byte.
    pub tolerated: usize,
}

impl Profile {
    /// Every profile. The mirrored profiles (`dup` to `raid1c4`) are ordered by safety, the safest
    /// last.
    pub const ALL: [Self; 9] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid10,
        Self::Raid1c3,
        Self::Raid1c4,
        Self::Raid5,
        Self::Raid6,
    ];

    /// The profile in the flags of a block group; `None` if the flags have several profile bits or
    /// an unknown bit.
    #[must_use]
    pub fn of(flags: BlockGroupFlags) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.flags() == flags.profile())
    }

    /// The profile's bit; no bit for single.
    #[must_use]
    pub fn flags(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags(0),
            Self::Dup => BlockGroupFlags::DUP,
            Self::Raid0 => BlockGroupFlags::RAID0,
            Self::Raid1 => BlockGroupFlags::RAID1,
            Self::Raid10 => BlockGroupFlags::RAID10,
            Self::Raid1c3 => BlockGroupFlags::RAID1C3,
            Self::Raid1c4 => BlockGroupFlags::RAID1C4,
            Self::Raid5 => BlockGroupFlags::RAID5,
            Self::Raid6 => BlockGroupFlags::RAID6,
        }
    }

    /// The name that mkfs accepts, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.flags().profile_name()
    }

    /// The profile of this name, in any case.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name().eq_ignore_ascii_case(name))
    }

    /// The requirements of the profile.
    #[must_use]
    pub fn spread(self) -> Spread {
        let one = Spread {
            per_device: 1,
            least: 1,
            most: Some(1),
            step: 1,
            copies: 1,
            parity: 0,
            tolerated: 0,
        };
        let mirrors = |copies| Spread {
            least: copies,
            most: Some(copies),
            step: copies,
            copies,
            tolerated: copies - 1,
            ..one
        };
        match self {
            Self::Single => one,
            Self::Dup => Spread { per_device: 2, copies: 2, ..one },
            Self::Raid0 => Spread { most: None, ..one },
            Self::Raid1 => mirrors(2),
            Self::Raid1c3 => mirrors(3),
            Self::Raid1c4 => mirrors(4),
            Self::Raid10 => Spread { most: None, ..mirrors(2) },
            Self::Raid5 => Spread { least: 2, most: None, parity: 1, tolerated: 1, ..one },
            Self::Raid6 => Spread { least: 3, most: None, parity: 2, tolerated: 2, ..one },
        }
    }

    /// How many stripes of a RAID10 chunk hold the same data; one for all other profiles.
    #[must_use]
    pub fn sub_stripes(self) -> u16 {
        if self == Self::Raid10 { 2 } else { 1 }
    }

    /// Chooses the profile of new chunks when block groups of one kind have several profiles.
    /// `devices` is the number of writable devices. The result is the safest present profile that
    /// needs at most `devices` devices.
    ///
    /// If no present profile needs so few devices, the result depends on whether a present profile
    /// survives the loss of a device. If one does, two or more devices give `raid1`, and one device
    /// gives `dup` for metadata. In all other cases the result is `single`.
    #[must_use]
    pub fn best(present: impl Iterator<Item = Self>, devices: usize, metadata: bool) -> Self {
        const ORDER: [Profile; 9] = [
            Profile::Raid1c4,
            Profile::Raid6,
            Profile::Raid1c3,
            Profile::Raid5,
            Profile::Raid10,
            Profile::Raid1,
            Profile::Dup,
            Profile::Raid0,
            Profile::Single,
        ];
        let rank = |profile: &Self| ORDER.iter().position(|known| known == profile);
        let present: Vec<Self> = present.collect();
        let fits = |profile: &&Self| profile.spread().least <= devices;
        if let Some(best) = present.iter().filter(fits).min_by_key(|profile| rank(profile)) {
            return *best;
        }
        let had_copies = present.iter().any(|profile| profile.spread().tolerated > 0);
        match (had_copies, devices) {
            (true, 2..) => Self::Raid1,
            (true, _) if metadata => Self::Dup,
            _ => Self::Single,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parsing the name or the bit of a profile returns the profile.
    #[test]
    fn names_and_bits_agree() {
        for profile in Profile::ALL {
            assert_eq!(Profile::parse(profile.name()), Some(profile));
            assert_eq!(Profile::of(profile.flags().with(BlockGroupFlags::DATA)), Some(profile));
        }
        assert_eq!(Profile::parse("RAID1C3"), Some(Profile::Raid1c3));
        assert_eq!(Profile::of(BlockGroupFlags(24)), None);
    }

    /// A chunk takes the safest profile that the devices allow, and a profile with copies is not
    /// replaced by a profile without copies.
    #[test]
    fn the_best_fits() {
        let of = |present: &[Profile], devices, metadata| {
            Profile::best(present.iter().copied(), devices, metadata)
        };
        assert_eq!(of(&[Profile::Single, Profile::Raid1], 2, false), Profile::Raid1);
        assert_eq!(of(&[Profile::Raid1c3], 2, false), Profile::Raid1);
        assert_eq!(of(&[Profile::Raid1], 1, true), Profile::Dup);
        assert_eq!(of(&[Profile::Raid1], 1, false), Profile::Single);
        assert_eq!(of(&[], 3, true), Profile::Single);
    }
}
