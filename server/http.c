/* http */
typedef int fired_http_is_not_written_yet;
