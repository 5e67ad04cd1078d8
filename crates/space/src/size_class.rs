//! The size class of a group of data: small and large extents lie in different groups, so that they
//! do not fragment each other's space.

use crate::SpaceKind;
use crate::index::Plane;

/// Largest small allocation, and largest medium one, in bytes.
const SMALL_MAX: u64 = 128 << 10;
const MEDIUM_MAX: u64 = 8 << 20;

/// The sizes of extents for which a group of data is used. The first allocation in the group sets
/// its class, which lasts until the group is empty again.
///
/// The class is not on disk: after a mount, a group has no class until the first allocation in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SizeClass {
    #[default]
    Unset,
    Small,
    Medium,
    Large,
}

impl SizeClass {
    pub(crate) const ALL: [Self; 4] = [Self::Unset, Self::Small, Self::Medium, Self::Large];

    /// The class of an allocation; nodes have no class.
    pub(crate) fn of(kind: SpaceKind, want: u64) -> Self {
        match want {
            _ if kind != SpaceKind::Data => Self::Unset,
            _ if want <= SMALL_MAX => Self::Small,
            _ if want <= MEDIUM_MAX => Self::Medium,
            _ => Self::Large,
        }
    }

    pub(crate) fn plane(self) -> Plane {
        match self {
            Self::Unset => Plane::Unset,
            Self::Small => Plane::Small,
            Self::Medium => Plane::Medium,
            Self::Large => Plane::Large,
        }
    }

    /// The planes of loaded groups in search order: this class, no class, then the other sizes, the
    /// nearest first.
    pub(crate) fn order(self) -> [Plane; 4] {
        use Plane::{Large, Medium, Small, Unset};
        match self {
            Self::Unset => [Unset, Small, Medium, Large],
            Self::Small => [Small, Unset, Medium, Large],
            Self::Medium => [Medium, Unset, Large, Small],
            Self::Large => [Large, Unset, Medium, Small],
        }
    }
}
