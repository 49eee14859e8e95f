/* request */
typedef int fired_request_is_not_written_yet;
