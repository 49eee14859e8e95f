/* arena */
typedef int fired_arena_is_not_written_yet;
