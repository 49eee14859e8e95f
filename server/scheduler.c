/* scheduler */
typedef int fired_scheduler_is_not_written_yet;
