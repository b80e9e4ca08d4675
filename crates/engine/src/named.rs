//! Enums whose variants have names: one list makes the enum, its variants in order, and their names.
//!
//! Written by hand these are three lists, and the compiler does not notice that `ALL` lacks a variant.

/// Declares an enum whose variants have names, such as `Denied = "denied"`. `ALL` and `name()` are as visible as it is.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    (
        $(#[$attribute:meta])*
        $visible:vis enum $kind:ident {
            $( $(#[$of_variant:meta])* $variant:ident $(($number:literal))? = $name:literal, )+
        }
    ) => {
        $(#[$attribute])*
        $visible enum $kind {
            $( $(#[$of_variant])* $variant $(= $number)?, )+
        }

        impl $kind {
            /// All of them, in their order.
            $visible const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name.
            $visible const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )+
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    named! {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Side {
            Left = "left",
            Right = "right-hand",
        }
    }

    #[test]
    fn a_variant_is_in_the_list_of_all_and_has_its_name() {
        assert_eq!(Side::ALL, [Side::Left, Side::Right]);
        assert_eq!(Side::ALL.map(Side::name), ["left", "right-hand"]);
    }
}
