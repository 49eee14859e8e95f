/* log */
typedef int fired_log_is_not_written_yet;
