// complete.cpp: the model goes on with a text, from C++.
//
//     c++ complete.cpp $(pkg-config --cflags --libs loam) -o complete
//     ./complete model.gguf "Once upon a time"
#include <loam.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct closes {
    void operator()(loam_model *model) const { loam_model_close(model); }
    void operator()(loam_session *session) const { loam_session_destroy(session); }
    void operator()(loam_sequence *sequence) const { loam_sequence_destroy(sequence); }
};
template <class T> using owned = std::unique_ptr<T, closes>;

static std::string complete(const char *path, const std::string &text) {
    loam_error error;
    const auto check = [&error](loam_status status) {
        if (status != LOAM_OK) throw std::runtime_error(error.message);
    };
    loam_model *model = nullptr;
    loam_session *session = nullptr;
    loam_sequence *sequence = nullptr;
    check(loam_model_open(&model, path, nullptr, &error));
    owned<loam_model> model_owner(model);
    std::vector<int32_t> ids(text.size() + 8);
    std::size_t count = 0;
    check(loam_tokenize(model, text.data(), text.size(), LOAM_TOKENIZE_BEGIN, ids.data(), ids.size(), &count,
                        &error));

    check(loam_session_create(&session, model, nullptr, &error));
    owned<loam_session> session_owner(session);
    check(loam_sequence_create(&sequence, session, nullptr, &error));
    owned<loam_sequence> sequence_owner(sequence);

    std::string answer;
    loam_generate_options generate{};
    generate.size = sizeof generate;
    generate.token_max = 32;
    generate.context = &answer;
    generate.text = [](void *context, std::size_t, const char *bytes, std::size_t length) {
        static_cast<std::string *>(context)->append(bytes, length);
        return false;
    };
    const loam_prompt prompt{sequence, ids.data(), count};
    check(loam_generate(session, &prompt, 1, &generate, &error));
    return answer;
}

int main(int argc, char **argv) try {
    if (argc != 3) throw std::runtime_error("usage: complete MODEL TEXT");
    std::cout << complete(argv[1], argv[2]) << '\n';
} catch (const std::exception &failure) {
    std::cerr << failure.what() << '\n';
    return 1;
}
