/* request_answer */
typedef int fired_request_answer_is_not_written_yet;
